// Fabrics: which node each link joins, and which link a switch takes. Pure structure: no time, no
// queues.
//
// Every fabric here is a folded Clos network over consecutive hosts, so one rule routes all of
// them. A switch covers the hosts [first, end) below it. To a host that it covers there is one way,
// down; to any other all upward links are as good, and a hash of (src, dst, entropy) picks one per
// flow (ECMP).
//
//   dumbbell     two switches, half of the hosts each, joined by `uplinks` parallel links
//   leaf_spine   leaves of `hosts_per_leaf` hosts, `uplinks` spines, each leaf joined to each spine
//   fat_tree     k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 cores, k ports a switch
//   (Al-
//                Fares et al., SIGCOMM'08); k is the smallest that holds the hosts, pods without
//                hosts are left out
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/hash.h"
#include "csrc/base/status.h"

namespace uccl::sim {

struct FabricSpec {
  std::string kind = "leaf_spine";
  uint32_t hosts = 64;
  uint32_t hosts_per_leaf = 0;  // leaf_spine; 0: about the square root of the hosts
  uint32_t uplinks = 0;  // dumbbell and leaf_spine; 0: as many as hosts below, no oversubscription
};

class Fabric final {
 public:
  struct Switch {
    std::string name;
    int tier = 1;                    // 1 is next to the hosts
    uint32_t first = 0, end = 0;     // hosts below
    uint32_t hosts_per_down = 1;     // of each downward link
    std::vector<uint32_t> down, up;  // links
  };
  struct Cable {
    uint32_t from = 0, to = 0;  // nodes: hosts first, then switches
  };

  // kInvalidArgument for an unknown kind or sizes that make no fabric.
  static Result<Fabric> Make(const FabricSpec& spec);

  uint32_t num_hosts() const { return hosts_; }
  bool IsHost(uint32_t node) const { return node < hosts_; }
  const std::vector<Cable>& cables() const { return cables_; }
  const std::vector<Switch>& switches() const { return switches_; }
  const Switch& switch_of(uint32_t node) const { return switches_[node - hosts_]; }
  // The link from a host to its switch.
  uint32_t host_link(uint32_t host) const { return host; }
  // Links between switches.
  const std::vector<uint32_t>& core_links() const { return core_links_; }
  int tiers() const { return tiers_; }
  // Links between two hosts that are as far apart as can be, per direction.
  uint32_t max_hops() const;

  // The link that a packet takes from the switch `node`.
  uint32_t Route(uint32_t node, uint32_t src, uint32_t dst, uint32_t entropy) const {
    const Switch& s = switch_of(node);
    if (dst >= s.first && dst < s.end) return s.down[(dst - s.first) / s.hosts_per_down];
    if (s.up.size() == 1) return s.up[0];
    return s.up[Bucket(Hash(node, src, dst, entropy), s.up.size())];
  }
  // The same where the switches know that some links are `out` (one flag a link): a flow whose way
  // is cut takes another of those that still lead to its host, by a second hash; other flows stay
  // where they are. Where none is left, the way that is cut.
  uint32_t RouteAround(uint32_t node, uint32_t src, uint32_t dst, uint32_t entropy,
                       const std::vector<bool>& out) const;

 private:
  // Each switch hashes with a salt of its own; equal hashes in two tiers would use only some of the
  // links of the second (polarisation).
  static uint64_t Hash(uint32_t node, uint32_t src, uint32_t dst, uint32_t entropy) {
    return Mix64(Mix64((uint64_t{src} << 32 | dst) + entropy * kEntropyStep) ^
                 (node * kSwitchStep));
  }
  static size_t Bucket(uint64_t hash, size_t count) { return (hash >> 32) * count >> 32; }
  // Whether what enters `link` can still get to the host `dst`.
  bool LeadsTo(uint32_t link, uint32_t dst, const std::vector<bool>& out) const;

  static constexpr uint64_t kEntropyStep = 0x9e3779b97f4a7c15ull;
  static constexpr uint64_t kSwitchStep = 0xd6e8feb86659fd93ull;

  explicit Fabric(uint32_t hosts) : hosts_(hosts) {}
  uint32_t AddSwitch(std::string name, int tier, uint32_t first, uint32_t end, uint32_t per_down);
  void AttachHosts();
  // Both directions between a switch and one above it (or beside it, then both are "up").
  void Join(uint32_t below, uint32_t above, bool beside);
  Status BuildDumbbell(const FabricSpec& spec);
  Status BuildLeafSpine(const FabricSpec& spec);
  Status BuildFatTree();

  uint32_t hosts_;
  int tiers_ = 1;
  std::vector<Switch> switches_;
  std::vector<Cable> cables_;  // host i's upward one is number i
  std::vector<uint32_t> core_links_;
};

}  // namespace uccl::sim
