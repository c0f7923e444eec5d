// Several runtimes in one test process, each acting as a process of a job, connected over the
// loopback interface. With one process nothing is started, as in a real job.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/collectives/runtime.h"

namespace uccl::coll::testing {

using Vector = std::vector<std::byte>;

// One rank's call: its buffers, and how it ended.
class Outcome final {
 public:
  // Far above anything a loaded machine needs.
  static constexpr std::chrono::seconds kPatience{120};

  void Set(const Status& status) {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(status_.has_value()) << "completed twice";
    status_ = status;
    changed_.notify_all();
  }
  Status Wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return status_.has_value(); })) {
      ADD_FAILURE() << "a rank was never completed";
      return Status::Error(StatusCode::kPeerTimeout, "test");
    }
    return *status_;
  }
  bool done() const {
    std::lock_guard lock(mutex_);
    return status_.has_value();
  }

  Vector input, output;

 private:
  mutable std::mutex mutex_;  // guards status_
  std::condition_variable changed_;
  std::optional<Status> status_;
};

// What a program of the job calls: one site, as each process compiled it.
struct Operation {
  OpKind kind{};
  DType dtype{};
  ReduceOp reduction{};
  std::vector<int64_t> shape;                    // of one rank
  std::vector<std::shared_ptr<CallSite>> sites;  // by process

  uint64_t elements() const {
    uint64_t n = 1;
    for (int64_t d : shape) n *= static_cast<uint64_t>(d);
    return n;
  }
  uint64_t bytes() const { return elements() * DTypeBytes(dtype); }
  // Of one rank's result, on `ranks` ranks.
  uint64_t output_bytes(size_t ranks) const {
    if (kind == OpKind::kAllGather) return bytes() * ranks;
    return kind == OpKind::kReduceScatter ? bytes() / ranks : bytes();
  }
};

class Fleet final {
 public:
  // `devices[p]` devices on process p.
  // With UCCL_TEST_EXECUTOR, operations go through that executor instead of the default one.
  static const char* OtherExecutor() { return std::getenv("UCCL_TEST_EXECUTOR"); }
  explicit Fleet(std::vector<int> devices, const Config& config = {}) : config_(config) {
    if (const char* executor = OtherExecutor()) config_.executor = executor;
    for (size_t p = 0; p < devices.size(); ++p) {
      runtimes_.push_back(std::make_unique<Runtime>());
      for (int i = 0; i < devices[p]; ++i) {
        ids_.push_back(static_cast<int64_t>(p) * 2048 + i);
        processes_.push_back(static_cast<int64_t>(p));
      }
    }
  }

  // Settings of one process, instead of those of all; before Start.
  void Use(size_t process, const Config& config) {
    own_configs_[process] = config;
    own_configs_[process].executor = config_.executor;
  }

  bool Start(uint64_t session = 42) {
    if (runtimes_.size() == 1) {
      const Status status = runtimes_[0]->SetConfig(config_);
      EXPECT_TRUE(status.ok()) << status.ToString();
      return status.ok();
    }
    std::vector<std::string> addresses;
    for (size_t p = 0; p < runtimes_.size(); ++p) {
      Result<std::string> address =
          runtimes_[p]->Start(own_configs_.contains(p) ? own_configs_.at(p) : config_);
      if (!address.ok()) {
        ADD_FAILURE() << address.status().ToString();
        return false;
      }
      addresses.push_back(address.value());
    }
    for (size_t p = 0; p < runtimes_.size(); ++p) {
      const Status status = runtimes_[p]->Connect(static_cast<ProcessId>(static_cast<int32_t>(p)),
                                                  addresses, session);
      EXPECT_TRUE(status.ok()) << status.ToString();
      if (!status.ok()) return false;
    }
    return true;
  }
  // All at once, as a job ends.
  void Shutdown(Nanos timeout = std::chrono::seconds(60)) {
    std::vector<std::thread> threads;
    for (auto& runtime : runtimes_) {
      if (runtime == nullptr) continue;
      threads.emplace_back([&runtime, timeout] {
        const Status status = runtime->Shutdown(timeout);
        EXPECT_TRUE(status.ok()) << status.ToString();
      });
    }
    for (std::thread& t : threads) t.join();
  }

  // A call site over groups of ranks (indices of devices); one group of all when empty. `adjust`
  // sets what else there is.
  Operation Compile(OpKind kind, DType dtype, ReduceOp reduction, std::vector<int64_t> shape,
                    int64_t site, std::vector<std::vector<int64_t>> groups = {},
                    const std::function<void(CallSiteSpec*)>& adjust = {}) {
    Operation op{kind, dtype, reduction, std::move(shape), {}};
    if (groups.empty()) {
      groups.emplace_back();
      for (size_t r = 0; r < ids_.size(); ++r) groups[0].push_back(static_cast<int64_t>(r));
    }
    for (auto& runtime : runtimes_) {
      CallSiteSpec spec;
      spec.kind = kind;
      spec.reduction = reduction;
      spec.site = spec.position = site;
      spec.label = std::string(OpKindName(kind)) + " site " + std::to_string(site);
      spec.module = "jit_test";
      spec.group_size = static_cast<int64_t>(groups[0].size());
      for (const auto& g : groups) spec.groups.insert(spec.groups.end(), g.begin(), g.end());
      spec.devices = ids_;
      spec.processes = processes_;
      if (adjust) adjust(&spec);
      auto made = CallSite::Make(std::move(spec), &runtime->instances(), 1);
      if (made.ok()) {
        op.sites.push_back(std::move(made.value()));
      } else {
        ADD_FAILURE() << made.status().ToString();
      }
    }
    return op;
  }

  // Rank `rank` calls; returns at once.
  std::shared_ptr<Outcome> Submit(const Operation& op, size_t rank, Vector input, int64_t run) {
    auto outcome = std::make_shared<Outcome>();
    outcome->input = std::move(input);
    outcome->output.assign(op.output_bytes(ranks()), std::byte{0xdb});
    Call call = CallOf(op, rank, run);
    call.input = outcome->input.data();
    call.output = outcome->output.data();
    call.done = [outcome](const Status& status) { outcome->Set(status); };
    runtimes_[process_of(rank)]->Submit(std::move(call));
    return outcome;
  }
  // What the rank calls with, but for the buffers.
  Call CallOf(const Operation& op, size_t rank, int64_t run) const {
    Call call;
    call.site = op.sites[process_of(rank)];
    call.device = ids_[rank];
    call.run = run;
    call.dtype = op.dtype;
    call.shape = op.shape;
    call.elements = op.elements();
    return call;
  }
  // All ranks call, in this order.
  std::vector<std::shared_ptr<Outcome>> SubmitAll(const Operation& op,
                                                  const std::vector<Vector>& inputs,
                                                  const std::vector<size_t>& order, int64_t run) {
    std::vector<std::shared_ptr<Outcome>> outcomes(inputs.size());
    for (size_t rank : order) outcomes[rank] = Submit(op, rank, inputs[rank], run);
    return outcomes;
  }

  Runtime& operator[](size_t process) { return *runtimes_[process]; }
  // As a process that dies: without a word beyond what its sockets say.
  void Destroy(size_t process) { runtimes_[process].reset(); }
  size_t size() const { return runtimes_.size(); }
  size_t ranks() const { return ids_.size(); }
  int64_t device(size_t rank) const { return ids_[rank]; }
  size_t process_of(size_t rank) const { return static_cast<size_t>(processes_[rank]); }

 private:
  Config config_;
  std::map<size_t, Config> own_configs_;
  std::vector<std::unique_ptr<Runtime>> runtimes_;
  std::vector<int64_t> ids_, processes_;  // by rank
};

}  // namespace uccl::coll::testing
