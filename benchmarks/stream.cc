// One end of a stream of messages from process 0 to process 1 through csrc/engine, without JAX: the
// transport-level part of paths.py, which starts both ends and joins them.
//
//   uccl_stream send|receive SECONDS MESSAGE_BYTES OUTSTANDING TICK_MS [setting=value ...]
//
// Prints `address <text>`, reads the peer's line from standard input, streams for SECONDS, and
// prints
//   tick <steady clock, ns> <payload bytes received so far, each counted once>     (receive; one
//   per TICK_MS) path <index> <state> <srtt ns> <packets sent> <packets lost> <failures> <window
//   bytes>          (send) sum <name> <value>
// Every received message is compared with what must have been sent. Exit code 1 says what went
// wrong on standard error.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/engine/engine.h"

namespace uccl {
namespace {

struct Options {
  bool sends = false;
  double seconds = 1;
  size_t message_bytes = 1 << 20;
  uint64_t outstanding = 4;
  int tick_ms = 10;
};

constexpr const char* kStop = "stop";

class Ends final : public engine::EngineSink {
 public:
  void OnMessage(ProcessId, const core::Event& event) override {
    std::lock_guard lock(mutex_);
    if (!event.status.ok() && error_.empty()) error_ = event.status.ToString();
    if (event.kind == core::EventKind::kMismatch && error_.empty()) error_ = "mismatch";
    done_.insert(event.token);
    changed_.notify_all();
  }
  void OnControl(ProcessId, const std::string& text) override {
    std::lock_guard lock(mutex_);
    stopped_ |= text == kStop;
    changed_.notify_all();
  }
  void OnPeerLost(ProcessId, const Status& status) override {
    std::lock_guard lock(mutex_);
    if (error_.empty()) error_ = status.ToString();
    changed_.notify_all();
  }
  // True when `token` is done; false at the stop, at `until` or after an error.
  bool Wait(uint64_t token, std::chrono::steady_clock::time_point until) {
    std::unique_lock lock(mutex_);
    const bool woken = changed_.wait_until(
        lock, until, [&] { return done_.contains(token) || stopped_ || !error_.empty(); });
    return woken && done_.erase(token) > 0;
  }
  std::string error() {
    std::lock_guard lock(mutex_);
    return error_;
  }
  bool stopped() {
    std::lock_guard lock(mutex_);
    return stopped_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<uint64_t> done_;
  bool stopped_ = false;
  std::string error_;
};

core::MessageInfo Info(uint64_t index, size_t bytes) {
  core::MessageInfo info;
  info.tag = {index * 0x9e3779b97f4a7c15ull, index};
  info.digest = 1;
  info.size_bytes = bytes;
  return info;
}

// Message `index`: bytes that depend on the place, and the index in front.
void Fill(std::vector<std::byte>* message, uint64_t index) {
  std::memcpy(message->data(), &index, std::min(sizeof(index), message->size()));
}
std::vector<std::byte> Contents(size_t bytes) {
  std::vector<std::byte> contents(bytes);
  uint64_t x = 1;
  for (std::byte& b : contents) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    b = static_cast<std::byte>(x >> 56);
  }
  return contents;
}

using Clock = std::chrono::steady_clock;
// One per message under way. The engine touches them until it is gone, so they outlive it.
using Buffers = std::vector<std::vector<std::byte>>;

// Returns what went wrong, or nothing.
std::string Send(const Options& o, engine::Engine* engine, Ends* ends, Buffers& buffers) {
  buffers.assign(o.outstanding, Contents(o.message_bytes));
  const Clock::time_point limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                     std::chrono::duration<double>(o.seconds + 30));
  for (uint64_t i = 0;; ++i) {
    std::vector<std::byte>& buffer = buffers[i % o.outstanding];
    if (i >= o.outstanding && !ends->Wait(i - o.outstanding + 1, limit)) {
      if (ends->stopped()) return {};
      return ends->error().empty() ? "the receiver never said stop" : ends->error();
    }
    Fill(&buffer, i);
    engine->Send(ProcessId{1}, Info(i, o.message_bytes), buffer, i + 1);
  }
}

void PrintSums(const core::ConnectionStats& stats) {
  const auto sum = [](const char* name, auto value) {
    std::printf("sum %s %lld\n", name, static_cast<long long>(value));
  };
  sum("payload_bytes_sent", stats.payload_bytes_sent);
  sum("payload_bytes_received", stats.payload_bytes_received);
  sum("packets_sent", stats.packets_sent);
  sum("retransmits_fast", stats.retransmits_fast);
  sum("retransmits_timeout", stats.retransmits_timeout);
  sum("spurious_retransmits", stats.spurious_retransmits);
  sum("tail_probes", stats.tail_probes);
  sum("timeouts", stats.timeouts);
  sum("path_probes", stats.path_probes);
  sum("duplicates", stats.duplicates);
  sum("out_of_window", stats.out_of_window);
  sum("acks_sent", stats.acks_sent);
  sum("srtt_ns", stats.srtt_ns);
  for (size_t i = 0; i < stats.paths.size(); ++i) {
    const core::PathStats& path = stats.paths[i];
    std::printf(
        "path %zu %s %lld %llu %llu %llu %lld\n", i,
        path.state == core::PathHealth::kUp ? "up" : "failed", static_cast<long long>(path.srtt_ns),
        static_cast<unsigned long long>(path.packets_sent),
        static_cast<unsigned long long>(path.packets_lost),
        static_cast<unsigned long long>(path.failures), static_cast<long long>(path.window_bytes));
  }
}

std::string Receive(const Options& o, engine::Engine* engine, Ends* ends, Buffers& buffers) {
  buffers.assign(o.outstanding, std::vector<std::byte>(o.message_bytes));
  std::vector<std::byte> expected = Contents(o.message_bytes);
  for (uint64_t i = 0; i < o.outstanding; ++i)
    engine->PostRecv(ProcessId{0}, Info(i, o.message_bytes), buffers[i], i + 1);
  std::vector<std::pair<int64_t, uint64_t>> ticks;
  const auto tick = std::chrono::milliseconds(o.tick_ms);
  Clock::time_point next = Clock::now();
  const Clock::time_point end =
      next + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(o.seconds));
  uint64_t done = 0;
  std::string wrong;
  while (wrong.empty() && next < end) {
    if (Clock::now() >= next) {
      const engine::EngineStats stats = engine->Stats();
      ticks.emplace_back(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(),
                         stats.peers.at(0).payload_bytes_received);
      next += tick;
    }
    if (!ends->Wait(done + 1, next)) {
      wrong = ends->error();
      continue;
    }
    std::vector<std::byte>& buffer = buffers[done % o.outstanding];
    Fill(&expected, done);
    if (std::memcmp(buffer.data(), expected.data(), expected.size()) != 0)
      wrong = "message " + std::to_string(done) + " arrived with wrong bytes";
    engine->PostRecv(ProcessId{0}, Info(done + o.outstanding, o.message_bytes), buffer,
                     done + o.outstanding + 1);
    ++done;
  }
  engine->SendControl(ProcessId{0}, kStop);
  for (const auto& [time, bytes] : ticks)
    std::printf("tick %lld %llu\n", static_cast<long long>(time),
                static_cast<unsigned long long>(bytes));
  std::printf("sum messages %llu\n", static_cast<unsigned long long>(done));
  return wrong;
}

std::string Run(int argc, char** argv) {
  if (argc < 6)
    return "usage: uccl_stream send|receive SECONDS BYTES OUTSTANDING TICK_MS [setting=value ...]";
  Options o;
  o.sends = std::string(argv[1]) == "send";
  o.seconds = std::atof(argv[2]);
  o.message_bytes = std::strtoull(argv[3], nullptr, 10);
  o.outstanding = std::strtoull(argv[4], nullptr, 10);
  o.tick_ms = std::atoi(argv[5]);
  if (o.message_bytes < 1 || o.outstanding < 1 || o.tick_ms < 1)
    return "sizes and counts must be positive";
  std::map<std::string, std::string> settings;
  for (int i = 6; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = text.find('=');
    if (equals == std::string::npos) return "a setting is name=value, not " + text;
    settings[text.substr(0, equals)] = text.substr(equals + 1);
  }
  settings.emplace("shared_memory", "off");  // network namespaces of one host are to be two hosts
  const Result<Config> config = MakeConfig(settings, {});
  if (!config.ok()) return config.status().ToString();
  Ends ends;
  Buffers buffers;
  auto started = engine::Engine::Start(config.value(), &ends);
  if (!started.ok()) return started.status().ToString();
  engine::Engine& engine = *started.value();
  std::printf("address %s\n", engine.LocalAddress().c_str());
  std::fflush(stdout);
  std::string peer;
  if (!std::getline(std::cin, peer)) return "no address of the peer on standard input";
  std::vector<std::string> addresses = {engine.LocalAddress(), peer};
  if (!o.sends) std::swap(addresses[0], addresses[1]);
  const Status connected = engine.Connect(ProcessId{o.sends ? 0 : 1}, addresses, 1);
  if (!connected.ok()) return connected.ToString();
  const std::string wrong =
      o.sends ? Send(o, &engine, &ends, buffers) : Receive(o, &engine, &ends, buffers);
  PrintSums(engine.Stats().peers.at(o.sends ? 1 : 0));
  // What the sender has under way is cut off on purpose; the receiver stays until its stop has
  // arrived.
  (void)engine.Shutdown(o.sends ? std::chrono::milliseconds(100) : std::chrono::seconds(5));
  return wrong;
}

}  // namespace
}  // namespace uccl

int main(int argc, char** argv) {
  const std::string wrong = uccl::Run(argc, argv);
  if (wrong.empty()) return 0;
  std::fprintf(stderr, "uccl_stream: %s\n", wrong.c_str());
  return 1;
}
