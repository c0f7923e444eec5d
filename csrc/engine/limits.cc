// The text of a Hello, and the arithmetic of windows.
#include "csrc/engine/limits.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "csrc/base/hash.h"
#include "csrc/core/cc/registry.h"
#include "csrc/core/path/path_selector.h"
#include "csrc/wire/packet.h"

namespace uccl::engine {
namespace {

// Changes whenever two builds could not talk: packet formats of csrc/wire, the engine's own control
// messages, the derivation of keys below.
constexpr std::string_view kVersion = "uccl/3";
static_assert(wire::kVersion == 3, "a new packet format needs a new kVersion here");

// Between the texts of a process's engines; no text of one holds it.
const std::string kBar = " | ";
// Before the address in shared memory; no other text holds it.
const std::string kShared = " & ";

struct Field {
  std::string_view key;
  int64_t Hello::* member;
};
constexpr std::array kFields = {
    Field{"paths", &Hello::paths},
    Field{"datagram", &Hello::max_datagram_bytes},
    Field{"receive", &Hello::receive_buffer_bytes},
    Field{"eager", &Hello::eager_max_bytes},
    Field{"eager_buffer", &Hello::eager_buffer_bytes},
    Field{"credit_initial", &Hello::credit_initial_bytes},
};

Status Malformed(const std::string& text, const std::string& what) {
  return Status::Error(StatusCode::kInvalidArgument,
                       "a process published the address \"" + text + "\", which " + what);
}

// Takes the text up to the next space off the front of `rest`.
std::string_view NextWord(std::string_view* rest) {
  const size_t space = rest->find(' ');
  const std::string_view word = rest->substr(0, space);
  rest->remove_prefix(space == std::string_view::npos ? rest->size() : space + 1);
  return word;
}

// What a directed pair hashes to, for one use.
uint64_t PairHash(uint64_t session, ProcessId from, ProcessId to, std::string_view use) {
  return Hasher(session)
      .Text(use)
      .Word(static_cast<uint64_t>(ToInt(from)))
      .Word(static_cast<uint64_t>(ToInt(to)))
      .Finish64();
}

}  // namespace

std::string EncodeHello(const Hello& hello) {
  std::string text(kVersion);
  text += " backend=" + hello.backend + " at=" + hello.nic_address +
          " credit=" + hello.receiver_scheduler;
  for (const Field& field : kFields) {
    text += " ";
    text += field.key;
    text += "=" + std::to_string(hello.*field.member);
  }
  return text;
}

Result<Hello> DecodeHello(const std::string& text) {
  std::string_view rest = text;
  const std::string_view version = NextWord(&rest);
  if (version != kVersion) {
    if (!version.starts_with("uccl/")) return Malformed(text, "is not one of this library");
    return Status::Error(StatusCode::kProtocol,
                         "a process speaks " + std::string(version) + ", this one " +
                             std::string(kVersion) +
                             "; install the same version of jax_uccl everywhere");
  }
  Hello hello;
  hello.receiver_scheduler.clear();
  std::array<bool, kFields.size()> seen{};
  while (!rest.empty()) {
    const std::string_view word = NextWord(&rest);
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) return Malformed(text, "holds a word without \"=\"");
    const std::string_view key = word.substr(0, equals), value = word.substr(equals + 1);
    if (key == "backend") hello.backend = value;
    if (key == "at") hello.nic_address = value;
    if (key == "credit") hello.receiver_scheduler = value;
    for (size_t i = 0; i < kFields.size(); ++i) {
      if (key != kFields[i].key) continue;
      int64_t number = 0;
      const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      if (error != std::errc() || stop != value.data() + value.size() || number < 0) {
        return Malformed(text, "has no number in " + std::string(key));
      }
      hello.*kFields[i].member = number;
      seen[i] = true;
    }
  }
  if (hello.backend.empty() || hello.nic_address.empty())
    return Malformed(text, "lacks an address");
  if (hello.receiver_scheduler.empty()) return Malformed(text, "lacks credit");
  for (size_t i = 0; i < kFields.size(); ++i) {
    if (!seen[i]) return Malformed(text, "lacks " + std::string(kFields[i].key));
  }
  if (hello.paths < 1) return Malformed(text, "has no path");
  return hello;
}

std::string JoinAddresses(const std::vector<std::string>& addresses) {
  std::string text;
  for (const std::string& address : addresses) text += (text.empty() ? "" : kBar) + address;
  return text;
}

Result<std::vector<std::string>> SplitAddresses(const std::string& text, int64_t engines,
                                                ProcessId process) {
  std::vector<std::string> addresses;
  for (size_t at = 0; at != std::string::npos;) {
    const size_t bar = text.find(kBar, at);
    addresses.push_back(text.substr(at, bar == std::string::npos ? bar : bar - at));
    at = bar == std::string::npos ? bar : bar + kBar.size();
  }
  if (static_cast<int64_t>(addresses.size()) == engines) return addresses;
  Status status = Status::Error(StatusCode::kInvalidArgument,
                                "process " + std::to_string(ToInt(process)) + " runs " +
                                    std::to_string(addresses.size()) + " engines, this one " +
                                    std::to_string(engines) +
                                    "; set engines (JAX_UCCL_ENGINES) alike everywhere");
  status.process = ToInt(process);
  return status;
}

void AddSharedAddress(const std::string& shared, std::string* text) { *text += kShared + shared; }

std::string TakeSharedAddress(std::string* text) {
  const size_t at = text->find(kShared);
  if (at == std::string::npos) return "";
  std::string shared = text->substr(at + kShared.size());
  text->resize(at);
  return shared;
}

bool UsesEcn(const Config& config) {
  for (const core::CongestionControllerRow& row : core::CongestionControllers()) {
    if (config.congestion_control == row.name) return config.ecn != 0 && row.signals.ecn;
  }
  return false;
}

core::CreditParams MakeCreditParams(const Config& config, const Hello& mine) {
  constexpr int64_t kDatagramsPerCredit = 4;
  core::CreditParams params;
  params.rate_bytes_per_s = config.line_rate_mbps * 1'000'000 / 8;
  params.quantum_bytes = config.credit_quantum_bytes > 0
                             ? config.credit_quantum_bytes
                             : kDatagramsPerCredit * mine.max_datagram_bytes;
  return params;
}

core::ConnectionConfig MakeConnectionConfig(const Config& config, const Hello& mine,
                                            const Hello& theirs, const LinkIdentity& identity,
                                            size_t route_datagram_bytes) {
  core::ConnectionConfig c;
  const auto [session, self, peer, processes] = identity;
  // A key stands for a direction, so one end's send_key is the other's recv_key, and a packet that
  // is sent back to its origin is refused.
  c.send_key = PairHash(session, self, peer, "key");
  c.recv_key = PairHash(session, peer, self, "key");
  c.initial_send_psn = static_cast<uint32_t>(PairHash(session, self, peer, "psn"));
  c.initial_recv_psn = static_cast<uint32_t>(PairHash(session, peer, self, "psn"));
  c.seed = PairHash(session, self, peer, "seed");

  c.num_paths =
      static_cast<uint16_t>(std::clamp<int64_t>(std::min(mine.paths, theirs.paths), 1, 65535));
  // Ends that were configured differently meet at the smaller value, which both can bear.
  c.eager_max_bytes = std::min(mine.eager_max_bytes, theirs.eager_max_bytes);
  c.credit_initial_bytes = std::min(mine.credit_initial_bytes, theirs.credit_initial_bytes);
  c.eager_buffer_bytes = std::min(mine.eager_buffer_bytes, theirs.eager_buffer_bytes);

  // All others may send to the peer at the same moment (an all-to-all does), so each gets an equal
  // part of what its device keeps. A sender on one path meets one of the buffers, not their sum.
  const int64_t senders = std::max<int64_t>(processes - 1, 1);
  const int64_t buffers = core::UsesSinglePath(config.path_policy) ? theirs.paths : 1;
  c.window_bytes = std::max<int64_t>(
      std::min(config.window_bytes, theirs.receive_buffer_bytes / buffers / senders), 1);

  // A path's share lies in one socket; where privileges for large buffers are missing that is
  // little. The whole window is for what round robin over all of them brings.
  c.path_window_bytes = std::max<int64_t>(
      theirs.receive_buffer_bytes / std::max<int64_t>(theirs.paths, 1) / senders, 1);

  // Several datagrams should fit into the window, or each waits for the acknowledgement of the one
  // before it; below 8 KiB the cost per datagram outweighs that.
  constexpr int64_t kDatagramsPerWindow = 4;
  constexpr int64_t kSmallestCut = 8192;
  const int64_t datagram =
      std::min({static_cast<int64_t>(route_datagram_bytes), theirs.max_datagram_bytes,
                std::max(c.window_bytes / kDatagramsPerWindow, kSmallestCut)});
  c.max_datagram_bytes = static_cast<size_t>(datagram);

  c.min_rto = std::chrono::microseconds(config.min_rto_us);
  c.max_rto = std::chrono::microseconds(config.max_rto_us);
  c.peer_silence = std::chrono::milliseconds(config.peer_silence_ms);
  c.congestion_control = config.congestion_control;
  c.cc_scope = config.cc_scope;
  c.base_rtt = std::chrono::microseconds(config.cc_base_rtt_us);
  c.queue_budget = std::chrono::microseconds(config.cc_queue_budget_us);
  c.line_rate_bytes_per_s = config.line_rate_mbps * 1'000'000 / 8;
  c.loss_tolerance_permille = config.cc_loss_tolerance_permille;
  c.sticky_packets = config.sticky_packets;
  c.max_retries = config.max_retries;
  c.path_policy = config.path_policy;
  return c;
}

}  // namespace uccl::engine
