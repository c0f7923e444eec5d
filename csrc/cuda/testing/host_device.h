// A device without a GPU: streams are queues whose launches run one after the other, each on groups
// of host threads from the kernels' own source. What enqueues work for CUDA enqueues it here
// unchanged.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "csrc/cuda/device.h"
#include "csrc/cuda/testing/launcher.h"

namespace uccl::cuda {

// Launches that were recorded instead of run.
using HostGraph = std::vector<std::function<Status()>>;

class HostStream final {
 public:
  // `launcher` outlives it.
  explicit HostStream(Launcher* launcher);
  // Waits for all launches.
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // For the launch functions of HostDevice.
  Stream stream() { return reinterpret_cast<Stream>(this); }
  static HostStream* From(Stream stream) { return reinterpret_cast<HostStream*>(stream); }
  Launcher* launcher() const { return launcher_; }

  void Enqueue(std::function<Status()> launch);
  // The first launch that failed, once the queue is empty.
  Status Wait();
  // Until EndCapture, launches are not run but kept.
  void BeginCapture();
  HostGraph EndCapture();
  void Replay(const HostGraph& graph);

 private:
  void Run();

  Launcher* const launcher_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::queue<std::function<Status()>> queue_;
  bool running_ = false, stopping_ = false, capturing_ = false;
  HostGraph captured_;
  Status failure_;
  std::thread thread_;
};

// Its memory is that of the host.
const Device& HostDevice();

}  // namespace uccl::cuda
