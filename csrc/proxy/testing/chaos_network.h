// Ranks joined by a network that keeps no order, delivers twice and late: one thread takes commands
// out of their FIFOs and hands puts to the production receiver (Inbound), which must cope. Seeded:
// what may happen next is drawn, when threads come to it is not.
//
//   command -> waits for some turns -> arrives, perhaps once more later -> waits -> lands
//
// A put reads its source when it lands, so a sender that reuses staging too early sends wrong data.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/fifo/host_fifo.h"
#include "csrc/proxy/inbound.h"
#include "csrc/proxy/put_note.h"
#include "csrc/proxy/region.h"

namespace uccl::proxy {

class ChaosNetwork final {
 public:
  ChaosNetwork(uint32_t ranks, size_t bytes, size_t counters, size_t fifo_capacity, uint64_t seed)
      : random_(seed) {
    std::vector<ProcessId> processes;
    for (uint32_t r = 0; r < ranks; ++r) processes.push_back(ProcessId{static_cast<int32_t>(r)});
    for (uint32_t r = 0; r < ranks; ++r) {
      Node& node = *nodes_.emplace_back(std::make_unique<Node>());
      node.memory.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
      RegionOptions options;
      options.key = 99, options.rank = r, options.processes = processes;
      options.memory = {reinterpret_cast<std::byte*>(node.memory.data()), bytes};
      options.num_counters = counters;
      node.region = Region::Make(options).value();
      node.inbound = std::make_unique<Inbound>(node.region, kWindow);
      auto fifo = fifo::HostFifo::Make(fifo_capacity);
      node.fifo = std::move(fifo.value());
      node.consumer =
          std::make_unique<fifo::FifoConsumer>(node.fifo->slots(), node.fifo->control());
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~ChaosNetwork() {
    stop_.store(true);
    thread_.join();
  }

  Region& region(size_t rank) { return *nodes_[rank]->region; }
  fifo::FifoView fifo(size_t rank) { return nodes_[rank]->fifo->view(); }
  std::byte* memory(size_t rank) { return nodes_[rank]->region->memory().data(); }
  const std::shared_ptr<Region>& shared_region(size_t rank) { return nodes_[rank]->region; }

  // Commands that were taken and whose put has landed; equal once all is delivered.
  uint64_t taken() const { return taken_.load(); }
  uint64_t landed() const { return landed_.load(); }
  // That a put arrived before one with a lower number of its stream, or once more.
  uint64_t overtook() const { return overtook_.load(); }
  uint64_t repeated() const { return repeated_.load(); }

 private:
  static constexpr uint32_t kWindow = 1u << 20;
  static constexpr uint32_t kMostTurns = 12;
  struct alignas(16) Line {
    std::byte bytes[16]{};
  };
  struct Node {
    std::vector<Line> memory;
    std::shared_ptr<Region> region;
    std::unique_ptr<Inbound> inbound;
    std::unique_ptr<fifo::HostFifo> fifo;
    std::unique_ptr<fifo::FifoConsumer> consumer;
  };
  struct Put {
    PutNote note;
    Bytes data;
    uint64_t due = 0;      // turn
    bool arrived = false;  // and waits to land in `to`
    MutableBytes to;
  };

  void Run() {
    while (!stop_.load()) {
      ++turn_;
      bool idle = true;
      for (auto& node : nodes_) idle &= !Take(node.get());
      // Some of those that are due, from anywhere in the list.
      for (size_t tries = puts_.size(); tries > 0 && !puts_.empty(); --tries) {
        const size_t i = random_() % puts_.size();
        if (puts_[i].due > turn_) continue;
        Put put = puts_[i];
        puts_[i] = puts_.back();
        puts_.pop_back();
        put.arrived ? Land(put) : Arrive(put);
        idle = false;
      }
      if (idle) std::this_thread::yield();
    }
  }

  bool Take(Node* node) {
    fifo::CommandWords batch[8];
    const size_t count = node->consumer->Poll({batch, 1 + random_() % 8});
    for (size_t i = 0; i < count; ++i) {
      const Result<fifo::Command> decoded = fifo::DecodeChecked(batch[i]);
      EXPECT_TRUE(decoded.ok()) << decoded.status().ToString();
      if (!decoded.ok()) continue;
      const fifo::Command& c = decoded.value();
      const bool known = fifo::HasPeer(c.kind) && c.peer < nodes_.size();
      EXPECT_TRUE(known) << "not a command of this network";
      if (!known) continue;
      Put put;
      put.note.kind = static_cast<PutKind>(c.kind);
      put.note.channel = static_cast<uint8_t>(c.channel);
      put.note.source = node->region->rank(), put.note.destination = c.peer;
      put.note.number = next_[{put.note.source, c.peer, c.channel}]++;
      put.note.offset = c.destination_offset;
      put.note.counter = c.counter, put.note.amount = c.amount;
      put.data = node->region->memory().subspan(c.source_offset, c.bytes);
      put.due = turn_ + random_() % kMostTurns;
      puts_.push_back(put);
      ++taken_;
    }
    return count > 0;
  }

  void Arrive(Put put) {
    Node& node = *nodes_[put.note.destination];
    uint32_t& highest = highest_[{put.note.source, put.note.destination, put.note.channel}];
    if (put.note.number + 1 < highest) ++overtook_;
    highest = std::max(highest, put.note.number + 1);
    auto verdict = node.inbound->OnArrival(ProcessId{static_cast<int32_t>(put.note.source)},
                                           put.note, put.data.size());
    EXPECT_TRUE(verdict.ok()) << verdict.status().ToString();
    if (!verdict.ok()) return;
    // Later, perhaps when its data has been replaced at the sender.
    if (random_() % 4 == 0) {
      Put again = put;
      again.due = turn_ + random_() % (4 * kMostTurns);
      puts_.push_back(again);
    }
    switch (verdict.value().what) {
      case Inbound::Verdict::What::kDrop:
        ++repeated_;
        return;
      case Inbound::Verdict::What::kReceive:
        put.arrived = true;
        put.to = verdict.value().buffer;
        put.due = turn_ + random_() % kMostTurns;
        puts_.push_back(put);
        return;
      case Inbound::Verdict::What::kDone:
        ++landed_;
        if (verdict.value().answer.raised) node.region->WakeWaiters();
        return;
    }
  }
  void Land(const Put& put) {
    Node& node = *nodes_[put.note.destination];
    std::memcpy(put.to.data(), put.data.data(), put.data.size());
    ++landed_;
    if (node.inbound->OnLanded(put.note).raised) node.region->WakeWaiters();
  }

  using Stream = std::tuple<uint32_t, uint32_t, uint32_t>;  // source, destination, channel
  std::vector<std::unique_ptr<Node>> nodes_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> taken_{0}, landed_{0}, overtook_{0}, repeated_{0};
  // Of the thread alone.
  std::mt19937_64 random_;
  uint64_t turn_ = 0;
  std::vector<Put> puts_;
  std::map<Stream, uint32_t> next_, highest_;
  std::thread thread_;
};

}  // namespace uccl::proxy
