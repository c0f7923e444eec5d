// Several engines in one process, connected over the loopback interface.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/engine/testing/recording_sink.h"

namespace uccl::engine::testing {

// Bytes that depend on the seed and on the place, so that a shifted or swapped message is seen.
inline std::vector<std::byte> Pattern(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
  for (size_t i = 0; i < size; ++i) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    bytes[i] = static_cast<std::byte>(x >> 56);
  }
  return bytes;
}

// Equal on both ends: `name` picks the tag.
inline core::MessageInfo Info(uint64_t name, size_t size) {
  core::MessageInfo info;
  info.tag = {name * 0x9e3779b97f4a7c15ull, name};
  info.digest = name + 1;
  info.size_bytes = size;
  return info;
}

// Over the network backend, although all processes are on one host.
inline Config OverNetwork(Config config = {}) {
  config.shared_memory = "off";
  return config;
}

struct Node {
  RecordingSink sink;  // outlives the engine
  std::unique_ptr<Engine> engine;
};

class Cluster final {
 public:
  explicit Cluster(int size, const Config& config = OverNetwork()) {
    for (int i = 0; i < size; ++i) {
      nodes_.push_back(std::make_unique<Node>());
      Result<std::unique_ptr<Engine>> engine = Engine::Start(config, &nodes_[i]->sink);
      if (!engine.ok()) {
        ADD_FAILURE() << engine.status().ToString();
        continue;
      }
      nodes_[i]->engine = std::move(engine.value());
      addresses_.push_back(nodes_[i]->engine->LocalAddress());
    }
  }
  bool Connect(uint64_t session = 99) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      Status status = ConnectOne(i, session);
      EXPECT_TRUE(status.ok()) << status.ToString();
      if (!status.ok()) return false;
    }
    return true;
  }
  Status ConnectOne(size_t i, uint64_t session = 99) {
    return nodes_[i]->engine->Connect(ProcessId{static_cast<int32_t>(i)}, addresses_, session);
  }
  // At once: each waits for its peers to answer.
  void ShutdownAll(Nanos timeout = std::chrono::seconds(20)) {
    std::vector<std::thread> threads;
    for (auto& node : nodes_) {
      threads.emplace_back([&node, timeout] {
        Status status = node->engine->Shutdown(timeout);
        EXPECT_TRUE(status.ok()) << status.ToString();
      });
    }
    for (std::thread& t : threads) t.join();
  }

  Node& operator[](size_t i) { return *nodes_[i]; }
  size_t size() const { return nodes_.size(); }
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::string> addresses_;
};

}  // namespace uccl::engine::testing
