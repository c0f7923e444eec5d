// Addresses out of places in buffers: tables of other kernels are made once, before it is known
// where the buffers lie, and this fills in the addresses when they are. The kernel is
// resolve_kernel.h; this header needs no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/stream.h"

namespace uccl::cuda {

inline constexpr uint32_t kMaxBuffers = 4;

struct Place {
  uint64_t offset = 0;  // in bytes
  uint32_t buffer = 0;  // below kMaxBuffers
};

// to[i] = buffers[places[i].buffer] + places[i].offset for i in [0, count). `uses` grows by one,
// for the kernels behind (turn.h), and `mark`, which tells the host that the stream has come here.
// Null: neither.
struct ResolveParams {
  const Place* places = nullptr;
  std::byte** to = nullptr;
  uint64_t count = 0;
  std::byte* buffers[kMaxBuffers] = {};
  uint64_t* uses = nullptr;
  uint64_t* mark = nullptr;  // pinned
};

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const ResolveParams& params);
Status LaunchResolve(const ResolveParams& params, Stream stream);

}  // namespace uccl::cuda
