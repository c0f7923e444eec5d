// One of the two processes of benchmarks/engine.py: an engine without JAX, or a plain TCP socket
// for comparison. Commands come on standard input and answers go to standard output, one line each.
//
//   engine_bench engine|tcp 0|1 [setting=value ...]
//     prints  address <text>          (of "tcp 1" and both engines; "tcp 0" has none)
//     reads   connect <text of the other process>
//     reads   stream <bytes> <messages> <in flight>      process 0 sends (engine only)
//     reads   pingpong <bytes> <rounds> callback|poll|wait   process 0 begins
//     reads   quit
//   Every command is answered with one line, "done" followed by key=value pairs.
//
// Ways of a round trip through the engine: "callback" answers on the engine thread; "poll" and
// "wait" answer on an application thread, which spins on a flag or sleeps on a condition variable.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/engine/engine.h"

namespace uccl::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::vector<std::byte> Pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  uint64_t x = 1;
  for (std::byte& b : bytes) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    b = static_cast<std::byte>(x >> 56);
  }
  return bytes;
}

// Half, 99 % and the mean of round trips in microseconds.
std::string Summary(std::vector<double> us) {
  if (us.empty()) return "";
  std::sort(us.begin(), us.end());
  double sum = 0;
  for (const double v : us) sum += v;
  char text[128];
  std::snprintf(text, sizeof(text), " median_us=%.2f p99_us=%.2f mean_us=%.2f", us[us.size() / 2],
                us[us.size() * 99 / 100], sum / static_cast<double>(us.size()));
  return text;
}

// Answers "done ..." or "error ...".
class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string address() = 0;
  virtual std::string Connect(const std::string& other) = 0;
  virtual std::string Stream(size_t bytes, size_t messages, size_t in_flight) = 0;
  virtual std::string PingPong(size_t bytes, size_t rounds, const std::string& how) = 0;
  virtual std::string Stats() { return "done"; }
};

class EnginePeer final : public Peer, public engine::EngineSink {
 public:
  EnginePeer(int process, const Config& config) : process_(process) {
    auto engine = engine::Engine::Start(config, this);
    if (engine.ok()) {
      engine_ = std::move(engine.value());
    } else {
      failure_ = engine.status().ToString();
    }
  }
  ~EnginePeer() override {
    if (engine_ != nullptr) (void)engine_->Shutdown(std::chrono::seconds(2));
  }

  std::string address() override { return engine_ == nullptr ? "none" : engine_->LocalAddress(); }

  std::string Connect(const std::string& other) override {
    if (engine_ == nullptr) return "error " + failure_;
    std::vector<std::string> addresses = {address(), other};
    if (process_ == 1) std::swap(addresses[0], addresses[1]);
    const Status status = engine_->Connect(ProcessId{process_}, addresses, /*session=*/1);
    return status.ok() ? "done" : "error " + status.ToString();
  }

  std::string Stream(size_t bytes, size_t messages, size_t in_flight) override {
    ++phase_;
    const bool sends = process_ == 0;
    const std::vector<std::byte> data = Pattern(bytes);
    in_flight = std::min(in_flight, messages);
    std::vector<std::vector<std::byte>> buffers(sends ? 0 : in_flight,
                                                std::vector<std::byte>(bytes));
    size_t posted = 0, finished = 0;  // of the engine thread once the first are posted
    const auto post = [&] {
      const size_t i = posted++;
      if (sends) {
        engine_->Send(Other(), Info(i, bytes), data, Token(i));
      } else {
        engine_->PostRecv(Other(), Info(i, bytes), buffers[i % in_flight], Token(i));
      }
    };
    Arm([&] {
      if (++finished == messages) return true;
      if (posted < messages) post();
      return false;
    });
    const double cpu = CpuSeconds();
    const Clock::time_point start = Clock::now();
    {
      // Held, so that the engine thread does not post between these: receives meet buffers in turn.
      std::lock_guard lock(mutex_);
      for (size_t i = 0; i < in_flight; ++i) post();
    }
    Await();
    const double seconds = Seconds(Clock::now() - start);
    if (!failure_.empty()) return "error " + failure_;
    for (const std::vector<std::byte>& b : buffers) {
      if (b != data) return "error wrong bytes arrived";
    }
    return "done seconds=" + std::to_string(seconds) +
           " cpu_s=" + std::to_string(CpuSeconds() - cpu);
  }

  std::string PingPong(size_t bytes, size_t rounds, const std::string& how) override {
    ++phase_;
    if (how == "callback") return PingPongOnEngine(bytes, rounds);
    const bool sleeps = how == "wait";
    const std::vector<std::byte> data = Pattern(bytes);
    std::vector<std::byte> buffer(bytes);
    std::vector<double> us;
    us.reserve(rounds);
    const double cpu = CpuSeconds();
    for (size_t i = 0; i < rounds; ++i) {
      // The receive is posted before the message that it answers leaves.
      ready_.store(false, std::memory_order_relaxed);  // no message of this round was sent yet
      Arm([] { return true; }, /*only_receives=*/true);
      engine_->PostRecv(Other(), Info(2 * i + (process_ == 0 ? 1 : 0), bytes), buffer,
                        Token(2 * i));
      const auto receive = [&] {
        if (sleeps) {
          Await();
        } else {
          while (!ready_.load(std::memory_order_acquire)) std::this_thread::yield();
        }
      };
      const auto send = [&] {
        engine_->Send(Other(), Info(2 * i + static_cast<size_t>(process_), bytes), data,
                      Token(2 * i + 1));
      };
      const Clock::time_point start = Clock::now();
      if (process_ == 0) {
        send();
        receive();
        us.push_back(Seconds(Clock::now() - start) * 1e6);
      } else {
        receive();
        send();
      }
      std::lock_guard lock(mutex_);
      if (!failure_.empty()) return "error " + failure_;
    }
    return "done cpu_s=" + std::to_string(CpuSeconds() - cpu) + Summary(us);
  }

  std::string Stats() override {
    const engine::EngineStats stats = engine_->Stats();
    std::string text = "done turns=" + std::to_string(stats.turns) +
                       " sleeps=" + std::to_string(stats.sleeps) +
                       " send_calls=" + std::to_string(stats.nic.send_calls) +
                       " receive_calls=" + std::to_string(stats.nic.receive_calls) +
                       " segmented_packets=" + std::to_string(stats.nic.segmented_packets) +
                       " segmented_datagrams=" + std::to_string(stats.nic.segmented_datagrams) +
                       " joined_packets=" + std::to_string(stats.nic.joined_packets) +
                       " joined_datagrams=" + std::to_string(stats.nic.joined_datagrams) +
                       " refused=" + std::to_string(stats.nic.segmentation_refused);
    for (const auto& [process, peer] : stats.peers) {
      text += " packets_sent=" + std::to_string(peer.packets_sent) +
              " packets_received=" + std::to_string(peer.packets_received) +
              " acks_sent=" + std::to_string(peer.acks_sent) +
              " fast=" + std::to_string(peer.retransmits_fast) +
              " timeout=" + std::to_string(peer.retransmits_timeout) +
              " window=" + std::to_string(peer.window_bytes);
    }
    return text;
  }

  void OnMessage(ProcessId, const core::Event& event) override {
    std::lock_guard lock(mutex_);
    if (!event.status.ok()) failure_ = event.status.ToString();
    const bool counts = !only_receives_ || event.kind == core::EventKind::kRecvDone;
    if (failure_.empty() && !(counts && on_done_ != nullptr && on_done_())) return;
    done_ = true;
    // release: what the message brought is visible to the thread that sees the flag.
    ready_.store(true, std::memory_order_release);
    changed_.notify_all();
  }
  void OnControl(ProcessId, const std::string&) override {}
  void OnPeerLost(ProcessId, const Status& status) override {
    std::lock_guard lock(mutex_);
    failure_ = status.ToString();
    done_ = true;
    ready_.store(true, std::memory_order_release);
    changed_.notify_all();
  }

 private:
  std::string PingPongOnEngine(size_t bytes, size_t rounds) {
    const std::vector<std::byte> data = Pattern(bytes);
    std::vector<std::byte> buffer(bytes);
    std::vector<double> us;
    us.reserve(rounds);
    size_t round = 0;
    Clock::time_point start;
    const auto post = [&] {
      engine_->PostRecv(Other(), Info(2 * round + (process_ == 0 ? 1 : 0), bytes), buffer,
                        Token(2 * round));
    };
    const auto send = [&](size_t i) {
      engine_->Send(Other(), Info(2 * i + static_cast<size_t>(process_), bytes), data,
                    Token(2 * i + 1));
    };
    Arm(
        [&] {
          const size_t received = round++;
          if (process_ == 0) {
            const Clock::time_point now = Clock::now();
            us.push_back(Seconds(now - start) * 1e6);
            if (round == rounds) return true;
            start = now;
            post();
            send(round);
            return false;
          }
          if (round < rounds) post();
          send(received);
          return round == rounds;
        },
        /*only_receives=*/true);
    const double cpu = CpuSeconds();
    start = Clock::now();
    {
      std::lock_guard lock(mutex_);
      post();
      if (process_ == 0) send(0);
    }
    Await();
    if (!failure_.empty()) return "error " + failure_;
    return "done cpu_s=" + std::to_string(CpuSeconds() - cpu) + Summary(us);
  }

  ProcessId Other() const { return ProcessId{1 - process_}; }
  uint64_t Token(size_t i) const { return (phase_ << 40) + i; }
  core::MessageInfo Info(size_t i, size_t bytes) const {
    core::MessageInfo info;
    info.tag = {phase_, i};
    info.size_bytes = bytes;
    return info;
  }
  // `on_done` runs for every finished message until it returns true.
  void Arm(std::function<bool()> on_done, bool only_receives = false) {
    std::lock_guard lock(mutex_);
    on_done_ = std::move(on_done);
    only_receives_ = only_receives;
    done_ = false;
  }
  void Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    on_done_ = nullptr;
  }

  const int process_;
  uint64_t phase_ = 0;
  std::mutex mutex_;  // guards what the engine thread and the main one share
  std::condition_variable changed_;
  std::function<bool()> on_done_;
  bool only_receives_ = false, done_ = false;
  std::string failure_;
  std::atomic<bool> ready_{false};
  std::unique_ptr<engine::Engine> engine_;  // last: its thread uses the rest
};

// Blocking sockets with TCP_NODELAY, as a program without this library would do it.
class TcpPeer final : public Peer {
 public:
  TcpPeer(int process, const Config& config) : process_(process) {
    ip_ = config.address.empty() ? "127.0.0.1" : config.address;
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    socklen_t size = sizeof(at);
    if (fd_ < 0 || inet_pton(AF_INET, ip_.c_str(), &at.sin_addr) != 1 ||
        ::bind(fd_, reinterpret_cast<sockaddr*>(&at), size) != 0 ||
        (process_ == 1 && ::listen(fd_, 1) != 0) ||
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
      failure_ = std::string("TCP on ") + ip_ + ": " + std::strerror(errno);
    }
    port_ = ntohs(at.sin_port);
  }
  ~TcpPeer() override {
    if (fd_ >= 0) ::close(fd_);
  }

  std::string address() override { return ip_ + " " + std::to_string(port_); }

  std::string Connect(const std::string& other) override {
    if (!failure_.empty()) return "error " + failure_;
    if (process_ == 1) {
      const int accepted = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
      ::close(std::exchange(fd_, accepted));
    } else {
      std::istringstream in(other);
      std::string ip;
      uint16_t port = 0;
      in >> ip >> port;
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(port);
      inet_pton(AF_INET, ip.c_str(), &to.sin_addr);
      if (::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
        return std::string("error connect: ") + std::strerror(errno);
      }
    }
    const int on = 1;
    if (fd_ < 0 || ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) {
      return std::string("error accept: ") + std::strerror(errno);
    }
    return "done";
  }

  std::string Stream(size_t, size_t, size_t) override {
    return "error streams over TCP are measured with iperf3";
  }

  std::string PingPong(size_t bytes, size_t rounds, const std::string&) override {
    const std::vector<std::byte> data = Pattern(bytes);
    std::vector<std::byte> buffer(bytes);
    std::vector<double> us;
    us.reserve(rounds);
    const double cpu = CpuSeconds();
    for (size_t i = 0; i < rounds; ++i) {
      const Clock::time_point start = Clock::now();
      const bool ok = process_ == 0 ? Write(data) && Read(&buffer) : Read(&buffer) && Write(data);
      if (!ok) return std::string("error TCP: ") + std::strerror(errno);
      if (process_ == 0) us.push_back(Seconds(Clock::now() - start) * 1e6);
    }
    return "done cpu_s=" + std::to_string(CpuSeconds() - cpu) + Summary(us);
  }

 private:
  bool Write(const std::vector<std::byte>& data) {
    for (size_t done = 0; done < data.size();) {
      const ssize_t n = ::send(fd_, data.data() + done, data.size() - done, MSG_NOSIGNAL);
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }
  bool Read(std::vector<std::byte>* buffer) {
    for (size_t done = 0; done < buffer->size();) {
      const ssize_t n = ::recv(fd_, buffer->data() + done, buffer->size() - done, 0);
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }

  const int process_;
  std::string ip_, failure_;
  uint16_t port_ = 0;
  int fd_ = -1;
};

int Run(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: engine_bench engine|tcp 0|1 [setting=value ...]\n";
    return 2;
  }
  std::map<std::string, std::string> settings;
  for (int i = 3; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    settings[word.substr(0, equals)] = equals == std::string::npos ? "" : word.substr(equals + 1);
  }
  settings.emplace("shared_memory", "off");  // the network is what is measured, though on one host
  const Result<Config> config = MakeConfig(settings, {});
  if (!config.ok()) {
    std::cerr << config.status().ToString() << "\n";
    return 2;
  }
  const int process = std::atoi(argv[2]) == 0 ? 0 : 1;
  std::unique_ptr<Peer> peer;
  if (std::string(argv[1]) == "tcp") {
    peer = std::make_unique<TcpPeer>(process, config.value());
  } else {
    peer = std::make_unique<EnginePeer>(process, config.value());
  }
  std::cout << "address " << peer->address() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string command, rest;
    in >> command;
    size_t bytes = 0, count = 0;
    std::string answer = "error unknown command: " + line;
    if (command == "quit") break;
    if (command == "connect") {
      std::getline(in >> std::ws, rest);
      answer = peer->Connect(rest);
    } else if (command == "stream") {
      size_t in_flight = 1;
      in >> bytes >> count >> in_flight;
      answer = peer->Stream(bytes, count, in_flight);
    } else if (command == "pingpong") {
      in >> bytes >> count >> rest;
      answer = peer->PingPong(bytes, count, rest);
    } else if (command == "stats") {
      answer = peer->Stats();
    }
    std::cout << answer << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace uccl::bench

int main(int argc, char** argv) { return uccl::bench::Run(argc, argv); }
