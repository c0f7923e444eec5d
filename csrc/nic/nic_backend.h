// What the engine needs of a network device. One implementation per folder (udp/, later
// verbs/), one row each in registry.cc. All calls come from the engine thread that owns the
// backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/base/status.h"
#include "csrc/base/types.h"

namespace uccl::nic {

using PeerHandle = uint32_t;

struct Capabilities {
  bool ordered = false;           // datagrams of one path arrive in order
  size_t max_datagram_bytes = 0;  // of the local interface
  uint16_t num_paths = 1;
  int64_t receive_buffer_bytes = 0;  // what the device keeps before it drops; shared by all peers
};

struct Outgoing {
  PeerHandle peer{};
  PathId path{};
  Bytes header, payload;  // sent as one datagram
};

struct Incoming {
  PathId path{};               // the local path (socket) it arrived at
  Bytes datagram;              // valid until the next Poll
  Ecn ecn = Ecn::kNotCapable;  // what the network left in the IP header
};

// A fault that the network reported about a peer. The code says what to make of it: kPeerLost, the
// host answered that nobody listens there (ICMP port unreachable); kNicError, sending will fail
// until a setting is changed; kAllPathsFailed, the peer cannot be reached now, which may pass.
struct Fault {
  PeerHandle peer{};
  Status status;
};

// What a device did since it was opened. A backend without such a thing leaves it at 0.
struct NicStats {
  uint64_t send_calls = 0, receive_calls = 0;  // system calls that moved something
  uint64_t datagrams_sent = 0, datagrams_received = 0;
  // Packets handed over as one and cut by the kernel or the device, or joined on their way in, and
  // the datagrams in them (also counted above).
  uint64_t segmented_packets = 0, segmented_datagrams = 0;
  uint64_t joined_packets = 0, joined_datagrams = 0;
  uint64_t segmentation_refused = 0;  // such packets that were refused, and sent one by one instead
  // What is in use now; false where it is switched off, or the kernel or the route cannot do it.
  bool segmentation = false, receive_offload = false;
};

class NicBackend {
 public:
  virtual ~NicBackend() = default;
  virtual const Capabilities& capabilities() const = 0;
  // Opaque text for the peer's AddPeer, exchanged at start-up.
  virtual std::string LocalAddress() const = 0;
  virtual Result<PeerHandle> AddPeer(const std::string& remote_address) = 0;
  // Datagram bytes that the route to this peer carries (the smaller of local and remote limits is
  // the engine's work).
  virtual size_t MaxDatagramBytes(PeerHandle peer) const = 0;
  // Returns how many of `batch`, from the front, were taken; fewer when the device is full. A hard
  // error of one datagram counts as taken (it is like loss) and shows in stats and faults.
  virtual size_t PostSend(std::span<const Outgoing> batch) = 0;
  // Fills `out` with what has arrived and returns the number; never blocks.
  virtual size_t Poll(std::span<Incoming> out) = 0;
  virtual std::vector<Fault> PollFaults() = 0;
  virtual NicStats stats() const { return {}; }
  // Sleeps until a datagram is readable, Wake() was called, or `timeout` passed (kNever: no limit).
  // When `want_send` is set it also returns once the device can take datagrams again.
  virtual void Wait(Nanos timeout, bool want_send) = 0;
  // The one call that any thread may make: ends the current or the next Wait.
  virtual void Wake() = 0;
};

struct BackendRow {
  const char* name;
  Result<std::unique_ptr<NicBackend>> (*open)(const Config& config);
  const char* summary;
};
std::span<const BackendRow> Backends();
// kInvalidArgument with the known names for an unknown one; the backend's own reason when it cannot
// open.
Result<std::unique_ptr<NicBackend>> OpenBackend(const Config& config);

}  // namespace uccl::nic
