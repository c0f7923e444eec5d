// Who may share memory with whom, and the text by which a process is found by its neighbours.
#pragma once

#include <cstdint>
#include <string>

#include "csrc/base/status.h"

namespace uccl::shm {

// Published by each process, read by all others.
struct Address {
  uint64_t host = 0;  // equal where processes can reach each other's memory
  int64_t pid = 0;
  int64_t fd = 0;      // of the segment, in that process
  uint64_t nonce = 0;  // of the segment
  uint64_t probe = 0;  // address of a word in private memory that holds the nonce
  bool operator==(const Address&) const = default;
};
std::string EncodeAddress(const Address& address);
// kInvalidArgument for a text that is none.
Result<Address> DecodeAddress(const std::string& text);

// One number for this boot of the machine, the namespaces of processes and users, and the user: the
// kernel lets processes that agree in all of them open each other's segments. kUnsupported with the
// reason where this process cannot be reached that way.
Result<uint64_t> HostIdentity();

}  // namespace uccl::shm
