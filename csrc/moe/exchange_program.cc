// See exchange_program.h.
#include "csrc/moe/exchange_program.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "csrc/base/hash.h"
#include "csrc/executor/host_kernels.h"
#include "csrc/executor/pipes.h"

namespace uccl::moe {
namespace {

// What the programs of one shape share, beside their region.
struct Shared {
  struct alignas(64) Line {
    std::byte bytes[64]{};
  };
  std::vector<Line> work, shared;
  std::unique_ptr<SlotExchange> exchange;
};

Result<Shared*> SharedFor(executor::Pipes* pipes, uint64_t kind, const SlotLayout& layout,
                          executor::SideRegion** side) {
  if (Status status = layout.Check(); !status.ok()) return status;
  const uint64_t name = HashWords({kind, NameOf(layout)});
  Result<executor::SideRegion*> opened = pipes->Side(name, layout.bytes(), layout.counters());
  if (!opened.ok()) return opened.status();
  *side = opened.value();
  if ((*side)->user == nullptr) {
    const auto shared = std::make_shared<Shared>();
    const SlotExchange::Results results = SlotExchange::ResultsOf(layout);
    const auto lines = [](uint64_t bytes) {
      return (bytes + sizeof(Shared::Line) - 1) / sizeof(Shared::Line);
    };
    shared->work.resize(lines(results.work_bytes));
    shared->shared.resize(lines(results.shared_bytes));
    SlotExchange::Memory memory;
    memory.region = (*side)->memory;
    memory.counters = (*side)->region->counters().data();
    memory.failed = (*side)->region->failed_word();
    memory.work = reinterpret_cast<std::byte*>(shared->work.data());
    memory.shared = reinterpret_cast<std::byte*>(shared->shared.data());
    shared->exchange = std::make_unique<SlotExchange>(layout, pipes->rank(), (*side)->fifo, memory);
    (*side)->user = shared;
  }
  return static_cast<Shared*>((*side)->user.get());
}

// Kernels one after the other on this thread.
struct HostRunner {
  executor::Pipes* pipes;
  proxy::Region* region;
  WaitTimes waited;

  template <class Params>
  Status Run(const Params& params) {
    return executor::RunOnHost(params);
  }
  Status Run(const cuda::AwaitRowsParams& params) {
    const Status status = Sleep(params);
    return status.ok() ? executor::RunOnHost(params) : status;
  }

  // Until the kernel would not have to wait.
  Status Sleep(const cuda::AwaitRowsParams& given) {
    const cuda::AwaitRowsParams p = InTurn(given);
    const uint64_t started = executor::HostClockNs();
    std::vector<proxy::Region::Threshold> left;
    for (uint32_t rank = 0; rank < p.ranks; ++rank) {
      left.push_back({p.announced + rank, p.state[rank] + 1});
    }
    while (!left.empty()) {
      if (Status status = region->WaitAny(left, kNever); !status.ok()) return status;
      std::vector<proxy::Region::Threshold> next;
      for (const proxy::Region::Threshold& t : left) {
        const uint64_t now = region->Read(t.counter);
        if (now < t.value) {
          next.push_back(t);
        } else if (t.counter >= p.announced && t.counter < p.announced + p.ranks) {
          // Its number of rows is known; too many are for the kernel to find.
          const uint32_t rank = t.counter - p.announced;
          const uint64_t rows = std::min(now - p.state[rank] - 1, p.most);
          next.push_back({p.arrived + rank, p.state[p.ranks + rank] + rows});
        } else {
          pipes->SetAwaits(t.counter - p.arrived, false);
          if (waited != nullptr) waited[t.counter - p.arrived] = executor::HostClockNs() - started;
        }
      }
      left.swap(next);
    }
    return Status::Ok();
  }
};

template <class Call>
Status RunCall(executor::Pipes* pipes, uint64_t kind, const SlotLayout& layout, const Call& call,
               WaitTimes waited) {
  executor::SideRegion* side = nullptr;
  Result<Shared*> shared = SharedFor(pipes, kind, layout, &side);
  if (!shared.ok()) return shared.status();
  const SlotExchange& exchange = *shared.value()->exchange;
  const proxy::Proxy::Use use(pipes->proxy());  // commands come, and counters are waited for
  HostRunner runner{pipes, side->region.get(), waited};
  const Status started = Start(runner, exchange, call);
  if (Status failure = side->region->status(); !failure.ok()) return failure;
  return started.ok() ? exchange.Trouble() : started;
}

}  // namespace

Status DispatchProgram::Run(executor::Pipes* pipes, uint64_t number) {
  (void)number;  // a region knows one use of a shape from the next by itself
  return RunCall(pipes, 1, LayoutOf(dispatch_, pipes->ranks()), dispatch_, waited_);
}

Status CombineProgram::Run(executor::Pipes* pipes, uint64_t number) {
  (void)number;
  return RunCall(pipes, 2, LayoutOf(combine_, pipes->ranks()), combine_, waited_);
}

}  // namespace uccl::moe
