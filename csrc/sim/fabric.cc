// The three builders. See fabric.h.
#include "csrc/sim/fabric.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace uccl::sim {
namespace {

constexpr uint32_t kMaxHosts = 1 << 16;

Status Refuse(std::string why) {
  return Status::Error(StatusCode::kInvalidArgument, std::move(why));
}

}  // namespace

Result<Fabric> Fabric::Make(const FabricSpec& spec) {
  if (spec.hosts < 2 || spec.hosts > kMaxHosts) {
    return Refuse("hosts is " + std::to_string(spec.hosts) + ", must be 2 to " +
                  std::to_string(kMaxHosts));
  }
  Fabric fabric(spec.hosts);
  fabric.cables_.resize(spec.hosts);
  Status status;
  if (spec.kind == "dumbbell") {
    status = fabric.BuildDumbbell(spec);
  } else if (spec.kind == "leaf_spine") {
    status = fabric.BuildLeafSpine(spec);
  } else if (spec.kind == "fat_tree") {
    status = fabric.BuildFatTree();
  } else {
    status = Refuse("unknown fabric `" + spec.kind + "`; known: dumbbell, leaf_spine, fat_tree");
  }
  if (!status.ok()) return status;
  for (const Switch& s : fabric.switches_) fabric.tiers_ = std::max(fabric.tiers_, s.tier);
  return fabric;
}

uint32_t Fabric::max_hops() const {
  // Up and down through all tiers; in a dumbbell the two switches of the one tier are joined.
  const bool crossing =
      std::ranges::any_of(switches_, [](const Switch& s) { return !s.up.empty(); });
  if (tiers_ == 1) return crossing ? 3 : 2;
  return 2 * static_cast<uint32_t>(tiers_);
}

// A way goes up at most as many times as there are tiers, so the recursion is shallow.
bool Fabric::LeadsTo(uint32_t link, uint32_t dst, const std::vector<bool>& out) const {
  if (out[link]) return false;
  const uint32_t node = cables_[link].to;
  if (IsHost(node)) return node == dst;
  const Switch& s = switch_of(node);
  if (dst >= s.first && dst < s.end) {
    return LeadsTo(s.down[(dst - s.first) / s.hosts_per_down], dst, out);
  }
  return std::ranges::any_of(s.up, [&](uint32_t up) { return LeadsTo(up, dst, out); });
}

uint32_t Fabric::RouteAround(uint32_t node, uint32_t src, uint32_t dst, uint32_t entropy,
                             const std::vector<bool>& out) const {
  const uint32_t usual = Route(node, src, dst, entropy);
  const Switch& s = switch_of(node);
  const bool downward = dst >= s.first && dst < s.end;
  if (downward || LeadsTo(usual, dst, out)) return usual;
  std::vector<uint32_t> left;
  std::ranges::copy_if(s.up, std::back_inserter(left),
                       [&](uint32_t up) { return LeadsTo(up, dst, out); });
  if (left.empty()) return usual;
  return left[Bucket(Mix64(Hash(node, src, dst, entropy)), left.size())];
}

uint32_t Fabric::AddSwitch(std::string name, int tier, uint32_t first, uint32_t end,
                           uint32_t per_down) {
  switches_.push_back({std::move(name), tier, first, std::min(end, hosts_), per_down, {}, {}});
  return static_cast<uint32_t>(switches_.size() - 1);
}

void Fabric::AttachHosts() {
  for (uint32_t s = 0; s < switches_.size(); ++s) {
    Switch& leaf = switches_[s];
    if (leaf.tier != 1) continue;
    for (uint32_t host = leaf.first; host < leaf.end; ++host) {
      cables_[host] = {host, hosts_ + s};
      leaf.down.push_back(static_cast<uint32_t>(cables_.size()));
      cables_.push_back({hosts_ + s, host});
    }
  }
}

void Fabric::Join(uint32_t below, uint32_t above, bool beside) {
  const auto link = [&](uint32_t from, uint32_t to) {
    const auto id = static_cast<uint32_t>(cables_.size());
    cables_.push_back({hosts_ + from, hosts_ + to});
    core_links_.push_back(id);
    return id;
  };
  switches_[below].up.push_back(link(below, above));
  std::vector<uint32_t>& back = beside ? switches_[above].up : switches_[above].down;
  back.push_back(link(above, below));
}

Status Fabric::BuildDumbbell(const FabricSpec& spec) {
  const uint32_t half = (hosts_ + 1) / 2;
  const uint32_t left = AddSwitch("left", 1, 0, half, 1);
  const uint32_t right = AddSwitch("right", 1, half, hosts_, 1);
  AttachHosts();
  for (uint32_t i = 0; i < (spec.uplinks == 0 ? half : spec.uplinks); ++i) Join(left, right, true);
  return Status::Ok();
}

Status Fabric::BuildLeafSpine(const FabricSpec& spec) {
  uint32_t per_leaf = spec.hosts_per_leaf;
  if (per_leaf == 0) {
    for (per_leaf = 1; per_leaf * per_leaf < hosts_;) per_leaf *= 2;
  }
  const uint32_t spines = spec.uplinks == 0 ? per_leaf : spec.uplinks;
  const uint32_t leaves = (hosts_ + per_leaf - 1) / per_leaf;
  for (uint32_t l = 0; l < leaves; ++l) {
    AddSwitch("leaf" + std::to_string(l), 1, l * per_leaf, (l + 1) * per_leaf, 1);
  }
  AttachHosts();
  if (leaves == 1) return Status::Ok();
  for (uint32_t s = 0; s < spines; ++s) {
    AddSwitch("spine" + std::to_string(s), 2, 0, hosts_, per_leaf);
    for (uint32_t l = 0; l < leaves; ++l) Join(l, leaves + s, false);
  }
  return Status::Ok();
}

Status Fabric::BuildFatTree() {
  uint32_t half = 1;  // k/2
  while (2 * half * half * half < hosts_) ++half;
  const uint32_t per_pod = half * half;
  const uint32_t pods = (hosts_ + per_pod - 1) / per_pod;
  for (uint32_t p = 0; p < pods; ++p) {
    for (uint32_t e = 0; e < half; ++e) {
      const uint32_t first = std::min(hosts_, p * per_pod + e * half);
      AddSwitch("edge" + std::to_string(p) + "." + std::to_string(e), 1, first, first + half, 1);
    }
  }
  AttachHosts();
  const uint32_t first_aggregation = pods * half;
  for (uint32_t p = 0; p < pods; ++p) {
    for (uint32_t a = 0; a < half; ++a) {
      const uint32_t aggregation = AddSwitch("agg" + std::to_string(p) + "." + std::to_string(a), 2,
                                             p * per_pod, (p + 1) * per_pod, half);
      for (uint32_t e = 0; e < half; ++e) Join(p * half + e, aggregation, false);
    }
  }
  if (pods == 1) return Status::Ok();
  // Core (a, c) joins the a-th aggregation switch of every pod.
  for (uint32_t a = 0; a < half; ++a) {
    for (uint32_t c = 0; c < half; ++c) {
      const uint32_t core =
          AddSwitch("core" + std::to_string(a) + "." + std::to_string(c), 3, 0, hosts_, per_pod);
      for (uint32_t p = 0; p < pods; ++p) Join(first_aggregation + p * half + a, core, false);
    }
  }
  return Status::Ok();
}

}  // namespace uccl::sim
