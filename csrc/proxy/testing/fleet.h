// Several "processes" in one: engines with a proxy each, and one region for every rank. For tests
// of what is put between ranks.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/engine/engine.h"
#include "csrc/fifo/slot.h"
#include "csrc/proxy/proxy.h"
#include "csrc/proxy/put_switch.h"

namespace uccl::proxy {

struct Node {
  PutSwitch sink{nullptr};  // outlives the engine
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<Proxy> proxy;
};

// How many processes, and how they reach each other: what goes by proxies is the same in all.
struct Way {
  std::string name;
  int processes;
  Config config;
};
inline std::vector<Way> Ways() {
  const auto way = [](const char* shared, int engines, int threads, int processes) {
    Way w{std::string("shared memory ") + shared + ", processes " + std::to_string(processes),
          processes,
          {}};
    w.config.shared_memory = shared, w.config.engines = engines;
    w.config.proxy_threads = threads;
    w.config.proxy_fifo_inflight = 24, w.config.proxy_peer_inflight = 40;  // so that caps are met
    return w;
  };
  return {way("off", 1, 1, 2), way("off", 2, 2, 4), way("on", 1, 2, 2)};
}

// Processes with the same number of ranks each, and one region for every rank.
class Fleet final {
 public:
  static constexpr size_t kCounters = 64;

  Fleet(int processes, int ranks_each, size_t bytes, const Config& config,
        size_t counters = kCounters)
      : counters_(counters) {
    std::vector<std::string> addresses;
    for (int p = 0; p < processes; ++p) {
      nodes_.push_back(std::make_unique<Node>());
      auto engine = engine::Engine::Start(config, &nodes_[p]->sink);
      EXPECT_TRUE(engine.ok()) << engine.status().ToString();
      nodes_[p]->engine = std::move(engine.value());
      addresses.push_back(nodes_[p]->engine->LocalAddress());
      auto proxy = Proxy::Start(config, nodes_[p]->engine.get(), ProcessId{p});
      EXPECT_TRUE(proxy.ok()) << proxy.status().ToString();
      nodes_[p]->proxy = std::move(proxy.value());
      nodes_[p]->sink.Attach(nodes_[p]->proxy.get());
    }
    for (int p = 0; p < processes; ++p) {
      const Status status = nodes_[p]->engine->Connect(ProcessId{p}, addresses, 7);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    for (int r = 0; r < processes * ranks_each; ++r) owners_.push_back(ProcessId{r / ranks_each});
    memory_.resize(owners_.size());
    regions_.resize(owners_.size());
    for (size_t r = 0; r < owners_.size(); ++r) {
      memory_[r].resize(bytes / sizeof(Line));
      uses_.push_back(nullptr);
    }
    for (auto& node : nodes_) uses_.push_back(std::make_unique<Proxy::Use>(node->proxy.get()));
  }
  ~Fleet() {
    uses_.clear();
    for (auto& node : nodes_) {
      if (node->proxy != nullptr) node->proxy->Shutdown();
    }
    std::vector<std::thread> threads;
    for (auto& node : nodes_) {
      threads.emplace_back([&node] {
        if (node->engine != nullptr) (void)node->engine->Shutdown(std::chrono::seconds(5));
      });
    }
    for (std::thread& t : threads) t.join();
  }

  RegionOptions Options(size_t rank) {
    RegionOptions options;
    options.key = 1234;
    options.rank = static_cast<uint32_t>(rank);
    options.processes = owners_;
    options.memory = {reinterpret_cast<std::byte*>(memory_[rank].data()),
                      memory_[rank].size() * sizeof(Line)};
    options.num_counters = counters_;
    return options;
  }
  void Register(size_t rank) {
    auto region = proxy(rank).RegisterRegion(Options(rank));
    ASSERT_TRUE(region.ok()) << region.status().ToString();
    regions_[rank] = region.value();
  }
  void RegisterAll() {
    for (size_t r = 0; r < regions_.size(); ++r) Register(r);
  }
  fifo::FifoView Open(size_t rank, size_t capacity) {
    auto view = proxy(rank).OpenFifo(regions_[rank], capacity);
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    return view.value();
  }
  Proxy& proxy(size_t rank) { return *nodes_[ToInt(owners_[rank])]->proxy; }
  Node& node(size_t process) { return *nodes_[process]; }
  Region& region(size_t rank) { return *regions_[rank]; }
  const std::shared_ptr<Region>& shared_region(size_t rank) { return regions_[rank]; }
  std::byte* memory(size_t rank) { return reinterpret_cast<std::byte*>(memory_[rank].data()); }
  size_t ranks() const { return owners_.size(); }
  // Whole processes vanish in order: their engine goes down while others still wait.
  void Leave(size_t process) {
    uses_[owners_.size() + process].reset();
    nodes_[process]->proxy->Shutdown();
    (void)nodes_[process]->engine->Shutdown(Nanos(0));
    nodes_[process]->engine.reset();
  }

 private:
  struct alignas(16) Line {
    std::byte bytes[16]{};
  };
  const size_t counters_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<ProcessId> owners_;
  std::vector<std::vector<Line>> memory_;
  std::vector<std::shared_ptr<Region>> regions_;
  std::vector<std::unique_ptr<Proxy::Use>> uses_;
};

}  // namespace uccl::proxy
