// What two processes tell each other before the first packet, and what follows from it for their
// connection: keys, first sequence numbers, and limits that both ends must respect. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/connection.h"
#include "csrc/core/credit/receiver_scheduler.h"

namespace uccl::engine {

// Published by each process, read by all others.
struct Hello {
  std::string backend;      // row of the NIC registry; no spaces
  std::string nic_address;  // NicBackend::LocalAddress; no spaces
  int64_t paths = 0;
  int64_t max_datagram_bytes = 0;    // largest this end takes
  int64_t receive_buffer_bytes = 0;  // what this end's device keeps, shared by all who send to it
  int64_t eager_max_bytes = 0;
  int64_t eager_buffer_bytes = 0;  // kept per peer
  int64_t credit_initial_bytes = 0;
  std::string receiver_scheduler = "none";  // row of the registry in core/credit; alike on all
  bool operator==(const Hello&) const = default;
};

// `uccl/3 backend=udp at=127.0.0.1:4001,4002 paths=2 ...`: one line of printable text.
std::string EncodeHello(const Hello& hello);
// kProtocol for another wire version, kInvalidArgument for a text that is none.
Result<Hello> DecodeHello(const std::string& text);

// What a process with several engines publishes, and back: one such line each, with a bar between.
// kInvalidArgument when there are not as many as `engines`; `process` is whose text it is.
std::string JoinAddresses(const std::vector<std::string>& addresses);
Result<std::vector<std::string>> SplitAddresses(const std::string& text, int64_t engines,
                                                ProcessId process);
// Behind them, the address by which processes of the same host find it (csrc/shm), where it has
// one.
void AddSharedAddress(const std::string& shared, std::string* text);
// Takes it off again; empty where there is none.
std::string TakeSharedAddress(std::string* text);

// Whether packets may ask for marks instead of drops: only where somebody reacts to marks (RFC 3168
// section 6.1 demands it), and the setting allows it.
bool UsesEcn(const Config& config);

// Of this process as a receiver.
core::CreditParams MakeCreditParams(const Config& config, const Hello& mine);

// A pair of processes of one start of the job.
struct LinkIdentity {
  uint64_t session = 0;
  ProcessId self{}, peer{};
  int64_t processes = 2;
};

// The connection from identity.self to identity.peer. `route_datagram_bytes` is what the route to
// the peer carries. Both ends arrive at matching keys, sequence numbers and eager limits.
core::ConnectionConfig MakeConnectionConfig(const Config& config, const Hello& mine,
                                            const Hello& theirs, const LinkIdentity& identity,
                                            size_t route_datagram_bytes);

}  // namespace uccl::engine
