// Host memory that a GPU reaches: staging, FIFOs, counters. This header needs no CUDA.
#pragma once

#include <cstddef>

#include "csrc/base/status.h"

namespace uccl::cuda {

// Zeroed, page-locked and mapped, at one address for host and devices, aligned to a page.
Result<std::byte*> AllocatePinned(size_t bytes);
void FreePinned(std::byte* memory);

}  // namespace uccl::cuda
