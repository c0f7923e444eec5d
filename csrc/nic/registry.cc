// The explicit table of network backends. A new one is a folder and a row here.
#include <array>

#include "csrc/nic/nic_backend.h"
#include "csrc/nic/udp/device.h"

namespace uccl::nic {
namespace {

constexpr std::array kBackends = {
    BackendRow{"udp", &udp::OpenUdp,
               "UDP sockets: any IP network, no privileges, one socket per path"},
};

}  // namespace

std::span<const BackendRow> Backends() { return kBackends; }

Result<std::unique_ptr<NicBackend>> OpenBackend(const Config& config) {
  std::string known;
  for (const BackendRow& row : Backends()) {
    if (config.backend == row.name) return row.open(config);
    if (!known.empty()) known += ", ";
    known += row.name;
  }
  return Status::Error(StatusCode::kInvalidArgument,
                       "setting backend=\"" + config.backend + "\" is unknown; known are " + known);
}

}  // namespace uccl::nic
