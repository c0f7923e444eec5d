// Commands per second through 1 and 8 FIFOs into one consumer, what a push and a poll cost alone,
// and the round trip of one command that is answered through a second FIFO. Prints one JSON object.
//
//   fifo_bench [runs] [commands per run]      defaults 7 and 2000000
//
// The cases take turns, so that what else the machine does meets all of them; medians with the
// quartiles beside them. One thread pushes into all FIFOs of a case in turn, another consumes: with
// more producer threads than cores the scheduler would be measured. "alone" fills FIFOs that nobody
// reads, then reads them: no cache line is contended, so 1 / max(push, poll) is what two cores
// could reach if nothing were shared.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/fifo/fifo_device.h"
#include "csrc/fifo/host_fifo.h"

namespace {

using uccl::fifo::Command;
using uccl::fifo::CommandKind;
using uccl::fifo::CommandWords;
using uccl::fifo::FifoConsumer;
using uccl::fifo::FifoView;
using uccl::fifo::HostFifo;
using uccl::fifo::NativeMemory;

using Clock = std::chrono::steady_clock;
double Seconds(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

Command MakeCommand(uint32_t i) {
  Command c;
  c.kind = CommandKind::kWriteCount;
  c.peer = i & 7;
  c.bytes = 14336;
  c.source_offset = uint64_t{i & 0xffff} * 14336;
  c.destination_offset = uint64_t{i & 0xff} * 14336;
  c.counter = i & 63;
  c.amount = 1;
  return c;
}

struct Fifos {
  Fifos(size_t count, size_t capacity) {
    for (size_t i = 0; i < count; ++i) {
      memory.push_back(std::move(HostFifo::Make(capacity).value()));
      views.push_back(memory.back()->view());
      consumers.emplace_back(memory.back()->slots(), memory.back()->control());
    }
  }
  void PushAll(uint64_t commands) {
    for (uint64_t i = 0; i < commands; ++i) {
      (void)Push(views[i % views.size()], MakeCommand(static_cast<uint32_t>(i)));
    }
  }
  // Decodes what it takes, as a proxy does; a sum keeps the work from being dropped.
  uint64_t PollAll(uint64_t commands) {
    std::array<CommandWords, 64> batch;
    uint64_t sum = 0;
    for (uint64_t taken = 0; taken < commands;) {
      size_t round = 0;
      for (FifoConsumer& consumer : consumers) {
        const size_t count = consumer.Poll(batch);
        for (size_t i = 0; i < count; ++i) {
          Command command;
          if (DecodeCommand(batch[i], &command) == uccl::fifo::CommandFault::kNone) {
            sum += command.bytes;
          }
        }
        round += count;
      }
      taken += round;
      if (round == 0) std::this_thread::yield();
    }
    return sum;
  }
  std::vector<std::unique_ptr<HostFifo>> memory;
  std::vector<FifoView> views;
  std::vector<FifoConsumer> consumers;
};

uint64_t sink = 0;

double Concurrent(size_t fifos, uint64_t commands) {
  Fifos f(fifos, 1024);
  const auto start = Clock::now();
  std::thread producer([&] { f.PushAll(commands); });
  sink += f.PollAll(commands);
  producer.join();
  return static_cast<double>(commands) / Seconds(start);
}

// Pushes and polls per second, each alone.
std::pair<double, double> Alone(size_t fifos, uint64_t commands) {
  Fifos f(fifos, (commands + fifos - 1) / fifos);
  auto start = Clock::now();
  f.PushAll(commands);
  const double pushes = static_cast<double>(commands) / Seconds(start);
  start = Clock::now();
  sink += f.PollAll(commands);
  return {pushes, static_cast<double>(commands) / Seconds(start)};
}

// Microseconds from a push to the answer's arrival, on average over `trips`.
double RoundTrip(int trips) {
  Fifos there(1, 64), back(1, 64);
  std::thread echo([&] {
    for (int i = 0; i < trips; ++i) {
      sink += there.PollAll(1) == 0;
      (void)Push(back.views[0], MakeCommand(0));
    }
  });
  const auto start = Clock::now();
  uint64_t sum = 0;
  for (int i = 0; i < trips; ++i) {
    (void)Push(there.views[0], MakeCommand(0));
    sum += back.PollAll(1);
  }
  const double seconds = Seconds(start);
  echo.join();
  sink += sum;
  return seconds * 1e6 / trips;
}

std::string Quartiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) { return values[static_cast<size_t>(q * (values.size() - 1))]; };
  char text[120];
  std::snprintf(text, sizeof(text), "{\"median\": %.4g, \"q1\": %.4g, \"q3\": %.4g}", at(0.5),
                at(0.25), at(0.75));
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::atoi(argv[1]) : 7;
  const uint64_t commands = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2'000'000;
  if (runs < 1 || commands < 1) {
    std::fprintf(stderr, "usage: fifo_bench [runs] [commands per run]\n");
    return 2;
  }
  std::vector<double> one, eight, push, poll, trip;
  for (int run = 0; run < runs; ++run) {
    one.push_back(Concurrent(1, commands));
    eight.push_back(Concurrent(8, commands));
    const auto [pushes, polls] = Alone(8, commands);
    push.push_back(pushes);
    poll.push_back(polls);
    trip.push_back(RoundTrip(2000));
  }
  std::array<double, 3> load{};
  if (getloadavg(load.data(), 3) < 1) load[0] = -1;
  std::printf("{\"runs\": %d, \"commands\": %llu, \"cpus\": %u, \"load_1min\": %.2f,\n", runs,
              static_cast<unsigned long long>(commands), std::thread::hardware_concurrency(),
              load[0]);
  std::printf(" \"commands_per_s\": {\"fifos_1\": %s, \"fifos_8\": %s},\n", Quartiles(one).c_str(),
              Quartiles(eight).c_str());
  std::printf(" \"alone_per_s\": {\"push\": %s, \"poll\": %s},\n", Quartiles(push).c_str(),
              Quartiles(poll).c_str());
  std::printf(" \"round_trip_us\": %s, \"checksum\": %llu}\n", Quartiles(trip).c_str(),
              static_cast<unsigned long long>(sink % 1000));
  return 0;
}
