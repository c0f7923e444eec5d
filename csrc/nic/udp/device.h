// The "udp" backend: works over any IP network, needs no privileges. One socket per path.
#pragma once

#include <memory>

#include "csrc/base/config.h"
#include "csrc/base/status.h"
#include "csrc/nic/nic_backend.h"

namespace uccl::nic::udp {

// Opens config.paths sockets on config.address (127.0.0.1 when empty).
Result<std::unique_ptr<NicBackend>> OpenUdp(const Config& config);

}  // namespace uccl::nic::udp
