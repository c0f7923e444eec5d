// What processes tell each other in words: the hello that each publishes (the first byte of the
// input is even) with the addresses in it, and the abort message (odd). What is understood must
// mean the same when it is said again, and whatever limits a hello names, the connection made from
// it is a possible one.
#include <algorithm>
#include <string>

#include "csrc/base/config.h"
#include "csrc/collectives/abort_message.h"
#include "csrc/collectives/description.h"
#include "csrc/core/connection.h"
#include "csrc/engine/limits.h"
#include "csrc/nic/udp/address.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace uccl::fuzz {
namespace {

// More paths cost memory, not other code.
constexpr uint16_t kMostPaths = 64;

void CheckAddress(const std::string& text) {
  const Result<nic::udp::EndpointSet> set = nic::udp::FromText(text);
  if (!set.ok()) {
    Require(set.status().code == StatusCode::kInvalidArgument, "a bad address is the caller's");
    return;
  }
  const Result<nic::udp::EndpointSet> again = nic::udp::FromText(ToText(set.value()));
  Require(again.ok() && again.value().ip.SameAs(set.value().ip) &&
              again.value().ports == set.value().ports,
          "an address survives being printed");
  Require(!set.value().ports.empty() && set.value().ports.size() <= 256, "1 to 256 ports");
}

void CheckHello(const std::string& text) {
  const Result<engine::Hello> hello = engine::DecodeHello(text);
  if (!hello.ok()) {
    const StatusCode code = hello.status().code;
    Require(code == StatusCode::kInvalidArgument || code == StatusCode::kProtocol,
            "a bad hello is malformed or of another version");
    return;
  }
  const engine::Hello& theirs = hello.value();
  const Result<engine::Hello> again = engine::DecodeHello(engine::EncodeHello(theirs));
  Require(again.ok() && again.value() == theirs, "a hello survives being printed");
  CheckAddress(theirs.nic_address);

  engine::Hello mine;
  mine.backend = "udp";
  mine.nic_address = "127.0.0.1:1";
  mine.paths = kMostPaths;
  mine.max_datagram_bytes = 65'507;
  mine.receive_buffer_bytes = 1 << 20;
  mine.eager_max_bytes = 16'384;
  mine.eager_buffer_bytes = 1 << 20;
  const engine::LinkIdentity identity{7, ProcessId{0}, ProcessId{1}, 4};
  const core::ConnectionConfig config =
      engine::MakeConnectionConfig(Config(), mine, theirs, identity, 1472);
  Require(config.num_paths >= 1 && config.num_paths <= kMostPaths, "paths of both ends");
  Require(config.window_bytes >= 1, "a window");
  Require(config.eager_max_bytes <= mine.eager_max_bytes && config.eager_max_bytes >= 0 &&
              config.eager_buffer_bytes <= mine.eager_buffer_bytes &&
              config.eager_buffer_bytes >= 0,
          "eager limits that this end can bear");
  const auto connection = core::Connection::Make(config);
  Require(connection.ok() || connection.status().code == StatusCode::kInvalidArgument,
          "a connection, or a reason why there is none");
}

void CheckAbort(const std::string& text) {
  uint64_t comm_id = 0;
  Status cause;
  if (coll::DecodeAbort(text, &comm_id, &cause)) {
    Require(!cause.ok(), "an abort has a cause");
    Require(!cause.ToString().empty(), "and says so");
    uint64_t comm_id_again = 0;
    Status again;
    Require(coll::DecodeAbort(coll::EncodeAbort(comm_id, cause), &comm_id_again, &again),
            "an abort survives being said again");
    Require(comm_id_again == comm_id && again.code == cause.code && again.peer == cause.peer &&
                again.process == cause.process && cause.detail.starts_with(again.detail),
            "with the same meaning, if shorter");
  }
}

void CheckDescription(Bytes input) {
  std::array<std::byte, 32> note{};
  std::copy_n(input.begin(), std::min(input.size(), note.size()), note.begin());
  const coll::OpDescription description = coll::OpDescription::Decode(note);
  Require(description.Encode() == note, "a description survives being encoded");
  Require(!description.ToString().empty(), "any description can be printed");
}

}  // namespace

void FuzzText(Bytes input) {
  Input in(input);
  const bool is_hello = in.Byte() % 2 == 0;
  const Bytes rest = in.Take(input.size());
  const std::string text(reinterpret_cast<const char*>(rest.data()), rest.size());
  if (is_hello) {
    CheckHello(text);
    CheckAddress(text);
  } else {
    CheckAbort(text);
    CheckDescription(rest);
  }
}

}  // namespace uccl::fuzz
