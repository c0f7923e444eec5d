// One rank of one communicator as a GPU stream would serve it: programs are enqueued in any order,
// and run one after the other in the order of the communicator.
//
// A program is what one rank does in one operation: exchanges over the pipes, with copies and
// reductions between them. A collective's is made from its schedule; anything else that moves data
// between the same ranks (a dispatch of tokens) is one more class, enqueued the same way.
//
// The order. On a GPU it is that of the stream. On the host XLA issues independent operations in an
// order that differs between ranks, so each program comes with its place, which is equal on all
// ranks: a lane, as one of several streams, and its number there. It waits until all lower ones of
// its lane have run, and for nothing in other lanes.
//
// Threads: any may call. While programs are ready one thread, which the executor starts from its
// pool, runs them; there is none while nothing is ready.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "csrc/base/status.h"
#include "csrc/executor/pipes.h"

namespace uccl::executor {

struct Place {
  uint32_t lane = 0;
  uint64_t number = 0;

  static constexpr uint32_t kMaxLanes = 1u << 16;
  static constexpr int kNumberBits = 48;
  // In messages.
  uint64_t AsWord() const { return uint64_t{lane} << kNumberBits | number; }
  static Place FromWord(uint64_t word) {
    return {static_cast<uint32_t>(word >> kNumberBits), word & ((uint64_t{1} << kNumberBits) - 1)};
  }
};

class Program {
 public:
  virtual ~Program() = default;
  // Runs to its end on the stream's thread. The tags of its messages carry `number`. After a
  // failure the programs behind it are not run.
  virtual Status Run(Pipes* pipes, uint64_t number) = 0;
};

// Starts a task on another thread, at once. Tasks wait for each other.
using Spawn = std::function<void(std::function<void()>)>;

class RankStream final : public std::enable_shared_from_this<RankStream> {
 public:
  RankStream(std::unique_ptr<Pipes> pipes, Spawn spawn)
      : pipes_(std::move(pipes)), spawn_(std::move(spawn)) {}

  // `done` is called once: on the stream's thread when the program has run, or when it never will
  // because it was failed. Then nothing of the program is touched any more. Not on this thread
  // unless it has failed already.
  void Enqueue(uint64_t number, std::unique_ptr<Program> program,
               std::function<void(const Status&)> done);
  // Programs with this number or a higher one will not run, or end soon if they do; `cause` is
  // their status. The first number and cause stay for those to come, unless a lower number fails.
  void FailFrom(uint64_t number, const Status& cause);

  Pipes& pipes() { return *pipes_; }

 private:
  struct Item {
    std::unique_ptr<Program> program;
    std::function<void(const Status&)> done;
  };
  void Run();

  const std::unique_ptr<Pipes> pipes_;
  const Spawn spawn_;
  std::mutex mutex_;                // guards all below
  std::map<uint64_t, Item> items_;  // by number
  uint64_t next_ = 0;               // one more than that of the program that runs, if any does
  bool running_ = false;
  uint64_t failed_from_ = UINT64_MAX;
  Status failure_;  // of those from there on
};

}  // namespace uccl::executor
