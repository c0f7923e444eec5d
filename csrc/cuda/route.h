// From the choices of a rank's tokens to where each copy goes: the peer, and the slot there. The
// kernel is route_kernel.h; this header needs no CUDA.
#pragma once

#include <cstdint>

#include "csrc/cuda/stream.h"

namespace uccl::cuda {

// A token goes once to each rank that has one of its experts. The copies for one rank are numbered
// in the order of the tokens, so that equal choices always take equal slots.
struct RouteParams {
  const int32_t* choices = nullptr;  // [tokens, width]: experts; negative: none
  uint32_t tokens = 0, width = 0;
  uint32_t ranks = 0, experts_per_rank = 0;
  // [tokens, width]: for the first choice of a token on a rank that rank, and the number of the
  // copy; -1 in both for all other entries.
  int32_t* peers = nullptr;
  int32_t* slots = nullptr;
  // Lowered to the first choice that is neither negative nor an expert; it counts as none. Null:
  // not told.
  uint64_t* fault = nullptr;
};

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const RouteParams& params);
Status LaunchRoute(const RouteParams& params, Stream stream);

}  // namespace uccl::cuda
