// Kernels on host threads.
#include "csrc/cuda/testing/host_launchers.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "csrc/cuda/await_rows_kernel.h"
#include "csrc/cuda/exchange_kernel.h"
#include "csrc/cuda/fold_kernel.h"
#include "csrc/cuda/issue_kernel.h"
#include "csrc/cuda/limit_kernel.h"
#include "csrc/cuda/ragged_kernel.h"
#include "csrc/cuda/reduce_kernel.h"
#include "csrc/cuda/resolve_kernel.h"
#include "csrc/cuda/route_kernel.h"
#include "csrc/cuda/rows_kernel.h"
#include "csrc/cuda/send_rows_kernel.h"
#include "csrc/cuda/testing/lane_group.h"
#include "csrc/cuda/wait_kernel.h"

namespace uccl::cuda {
namespace {

constexpr std::align_val_t kAlignment{256};

std::shared_ptr<std::byte> AllocateHost(size_t bytes) {
  auto* p = static_cast<std::byte*>(::operator new(bytes + 1, kAlignment));
  std::memset(p, 0, bytes);
  return {p, [](std::byte* q) { ::operator delete(q, kAlignment); }};
}

// Groups of host threads; with lanes, the kernels that use them see lanes of 4. One type of group
// for all shapes: each more would compile every kernel once more.
class HostLauncher final : public Launcher {
 public:
  HostLauncher(std::string name, uint32_t groups, uint32_t size, bool lanes)
      : name_(std::move(name)), groups_(groups), size_(size), lanes_(lanes) {}

  std::string name() const override { return name_; }

  Status Run(const MoveRowsParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    WithRowCodec(p, [&]<class Codec>() {
      if (!lanes_) {
        Threads([&](fifo::HostGroup& group) { MoveRows<Codec>(group, p); });
        return;
      }
      std::vector<std::vector<uint32_t>> values(groups_, std::vector<uint32_t>(size_));
      Threads([&](fifo::HostGroup& group) {
        LaneGroup<4> lanes(&group, &values[group.index()]);
        MoveRows<Codec>(lanes, p);
      });
    });
    return Status::Ok();
  }
  Status Run(const FoldRowsParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    WithFoldCodecs(p, [&]<class From, class To>() {
      Threads([&](fifo::HostGroup& group) { FoldRows<From, To>(group, p); });
    });
    return Status::Ok();
  }
  Status Run(const ReduceParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    WithReduction(p.element, p.op, [&]<class Kind, class Op>() {
      Threads([&](fifo::HostGroup& group) { Reduce<Kind, Op>(group, p); });
    });
    return Status::Ok();
  }
  Status Run(const IssueParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    Threads([&](fifo::HostGroup& group) { Issue(group, p); });
    return Status::Ok();
  }
  Status Run(const WaitParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    Threads([&](fifo::HostGroup& group) {
      if (group.index() == 0) Wait(group, p);
    });
    return Status::Ok();
  }
  Status Run(const RouteParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    Threads([&](fifo::HostGroup& group) { Route(group, p); });
    return Status::Ok();
  }
  Status Run(const SendRowsParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    Threads([&](fifo::HostGroup& group) { SendRows(group, p); });
    return Status::Ok();
  }
  Status Run(const AwaitRowsParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    Threads([&](fifo::HostGroup& group) {
      if (group.index() == 0) AwaitRows(group, p, ClockNs);
    });
    return Status::Ok();
  }
  Status Run(const ExchangeParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    Threads([&](fifo::HostGroup& group) { Exchange(group, p); });
    return Status::Ok();
  }
  Status Run(const ResolveParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    Threads([&](fifo::HostGroup& group) {
      if (group.index() == 0) Resolve(group, p);
    });
    return Status::Ok();
  }
  Status Run(const RaggedParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    Threads([&](fifo::HostGroup& group) {
      if (group.index() == 0) Ragged(group, p);
    });
    return Status::Ok();
  }
  Status Run(const LimitParams& p) override {
    if (Status s = CheckParams(p); !s.ok()) return s;
    Threads([&](fifo::HostGroup& group) { Limit(group, p); });
    return Status::Ok();
  }

  std::shared_ptr<std::byte> Allocate(size_t bytes) override { return AllocateHost(bytes); }
  std::shared_ptr<std::byte> AllocatePinned(size_t bytes) override { return AllocateHost(bytes); }

 private:
  template <class Kernel>
  void Threads(const Kernel& kernel) {
    fifo::RunHostGroups(groups_, size_, kernel);
  }

  const std::string name_;
  const uint32_t groups_, size_;
  const bool lanes_;
};

}  // namespace

std::vector<std::unique_ptr<Launcher>> HostLaunchers() {
  std::vector<std::unique_ptr<Launcher>> all;
  const auto add = [&](const char* name, uint32_t groups, uint32_t size, bool lanes) {
    all.push_back(std::make_unique<HostLauncher>(name, groups, size, lanes));
  };
  add("one thread", 1, 1, false);
  add("2 groups of 3 threads", 2, 3, false);
  add("8 threads in lanes of 4", 1, 8, true);
  add("32 threads", 1, 32, false);
  return all;
}

}  // namespace uccl::cuda
