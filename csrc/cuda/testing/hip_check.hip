// Compiles the kernels with hipcc, for AMD GPUs: a check that the source is not CUDA's alone. There
// are no launch functions for HIP, and none of this has run.
#include <hip/hip_runtime.h>

#include "csrc/cuda/await_rows_kernel.h"
#include "csrc/cuda/fold_kernel.h"
#include "csrc/cuda/issue_kernel.h"
#include "csrc/cuda/reduce_kernel.h"
#include "csrc/cuda/route_kernel.h"
#include "csrc/cuda/rows_kernel.h"
#include "csrc/cuda/send_rows_kernel.h"
#include "csrc/cuda/wait_kernel.h"

namespace uccl::cuda {

template <class Codec>
__global__ void MoveRowsKernel(MoveRowsParams p) {
  fifo::BlockGroup group;
  MoveRows<Codec>(group, p);
}
template <class From, class To>
__global__ void FoldRowsKernel(FoldRowsParams p) {
  fifo::BlockGroup group;
  FoldRows<From, To>(group, p);
}
template <class Kind, class Op>
__global__ void ReduceKernel(ReduceParams p) {
  fifo::BlockGroup group;
  Reduce<Kind, Op>(group, p);
}
__global__ void IssueKernel(IssueParams p) {
  fifo::WarpGroup group;
  Issue(group, p);
}
__global__ void WaitKernel(WaitParams p) {
  fifo::WarpGroup group;
  Wait(group, p);
}
__global__ void RouteKernel(RouteParams p) {
  fifo::WarpGroup group;
  Route(group, p);
}
__global__ void SendRowsKernel(SendRowsParams p) {
  fifo::WarpGroup group;
  SendRows(group, p);
}
struct DeviceClock {  // any: hipcc 5.2 has no wall_clock64
  __device__ uint64_t operator()() const { return clock64(); }
};
__global__ void AwaitRowsKernel(AwaitRowsParams p) {
  fifo::WarpGroup group;
  AwaitRows(group, p, DeviceClock{});
}

void Instantiate(const MoveRowsParams& rows, const FoldRowsParams& fold, const ReduceParams& reduce,
                 const IssueParams& issue, const WaitParams& wait, const RouteParams& route,
                 const SendRowsParams& send, const AwaitRowsParams& await) {
  WithRowCodec(rows, [&]<class Codec>() { MoveRowsKernel<Codec><<<1, 64>>>(rows); });
  WithFoldCodecs(fold,
                 [&]<class From, class To>() { FoldRowsKernel<From, To><<<1, 64>>>(fold); });
  WithReduction(reduce.element, reduce.op,
                [&]<class Kind, class Op>() { ReduceKernel<Kind, Op><<<1, 64>>>(reduce); });
  IssueKernel<<<1, 64>>>(issue);
  WaitKernel<<<1, 64>>>(wait);
  RouteKernel<<<1, 64>>>(route);
  SendRowsKernel<<<1, 64>>>(send);
  AwaitRowsKernel<<<1, 64>>>(await);
}

}  // namespace uccl::cuda
