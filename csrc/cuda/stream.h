// A CUDA stream in headers that do not include CUDA's.
#pragma once

#include "csrc/base/status.h"

struct CUstream_st;

namespace uccl::cuda {

using Stream = CUstream_st*;  // cudaStream_t

}  // namespace uccl::cuda
