// Cuts the vectors of reduce.h into blocks for the kernels, and writes results to all outputs.
#include "csrc/collectives/reduce.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "csrc/base/copy.h"
#include "csrc/collectives/reduce_kernels.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace uccl::coll {
namespace {

// The widest vector, and so the alignment of blocks that lie in the cache.
constexpr size_t kAlignment = 64;

const KernelSet& SetOf(VectorLevel level) {
#ifdef UCCL_HAVE_X86_LEVELS
  if (level == VectorLevel::kAvx2) return kAvx2Kernels;
  if (level == VectorLevel::kAvx512) return kAvx512Kernels;
#endif
  (void)level;
  return kBaselineKernels;
}

// The kernel of a pair, which may be that of another type with the same bits.
BlockKernel KernelOf(const KernelSet& set, DType dtype, ReduceOp op) {
  const bool arithmetic = op == ReduceOp::kSum || op == ReduceOp::kProd;
  const bool bitwise = op == ReduceOp::kAnd || op == ReduceOp::kOr;
  const bool integer = dtype >= DType::kS8 && dtype <= DType::kU64;
  if (bitwise) return integer || dtype == DType::kPred ? set.find(DType::kU64, op) : nullptr;
  switch (dtype) {
    case DType::kPred:
      return arithmetic ? nullptr : set.find(DType::kU8, op);
    case DType::kS8:
      return set.find(arithmetic ? DType::kU8 : dtype, op);
    case DType::kS16:
      return set.find(arithmetic ? DType::kU16 : dtype, op);
    case DType::kS32:
      return set.find(arithmetic ? DType::kU32 : dtype, op);
    case DType::kS64:
      return set.find(arithmetic ? DType::kU64 : dtype, op);
    case DType::kC64:
      if (op == ReduceOp::kSum) return set.find(DType::kF32, op);
      return kBaselineKernels.find(dtype, op);
    case DType::kC128:
      if (op == ReduceOp::kSum) return set.find(DType::kF64, op);
      return kBaselineKernels.find(dtype, op);
    default:
      return set.find(dtype, op);
  }
}

// XLA's threads flush subnormals to zero, ours do not: the result must not depend on which one gets
// here. On x86-64 only the vector unit computes, and saving the rest costs more than a small
// reduction.
class DefaultFloatEnvironment final {
 public:
#if defined(__SSE2__)
  DefaultFloatEnvironment() : before_(_mm_getcsr()) {
    constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, to nearest, nothing flushed
    _mm_setcsr(kDefault);
  }
  ~DefaultFloatEnvironment() { _mm_setcsr(before_); }
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&before_); }
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__SSE2__)
  const unsigned before_;
#else
  std::fenv_t before_;
#endif
};

struct alignas(kAlignment) Line {
  std::byte bytes[kAlignment];
};

}  // namespace

bool ReduceSupported(DType dtype, ReduceOp op) {
  return KernelOf(kBaselineKernels, dtype, op) != nullptr;
}

void ReduceElements(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                    std::span<std::byte* const> outputs, size_t count) {
  ReduceElementsAt(BestVectorLevel(), dtype, op, inputs, outputs, count);
}

void ReduceElementsAt(VectorLevel level, DType dtype, ReduceOp op,
                      std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                      size_t count) {
  const size_t n = inputs.size();
  const size_t bytes = count * DTypeBytes(dtype);
  if (bytes == 0) return;
  // Nobody reads outputs of this size before they have left the caches.
  const bool stream = bytes * outputs.size() >= kStreamBytes;
  const auto write = stream ? &StreamBytes : &CopyBytes;
  if (n == 1) {
    for (std::byte* output : outputs) write(output, inputs[0], bytes);
    if (stream) StreamFence();
    return;
  }
  const KernelSet& set = SetOf(level);
  const BlockKernel kernel = KernelOf(set, dtype, op);
  const DefaultFloatEnvironment environment;

  // Uninitialised: the kernels write before they read.
  constexpr size_t kBlockLines = kReduceBlockBytes / kAlignment;
  const size_t levels = n <= kReduceDirectInputs ? 0 : std::bit_width(n);
  const size_t tail = bytes % set.vector_bytes;
  const size_t result_lines = stream || tail > 0 ? kBlockLines : 0;
  const size_t scratch_lines = levels * kReduceScratchBytes / kAlignment;
  const std::unique_ptr<Line[]> lines(new Line[result_lines + scratch_lines + (tail > 0 ? n : 0)]);
  auto* const result = reinterpret_cast<std::byte*>(lines.get());
  std::byte* const scratch = result + result_lines * kAlignment;
  std::byte* const padded = scratch + scratch_lines * kAlignment;

  std::vector<const std::byte*> at(inputs.begin(), inputs.end());
  for (size_t begin = 0; begin < bytes - tail; begin += kReduceBlockBytes) {
    const size_t size = std::min(kReduceBlockBytes, bytes - tail - begin);
    for (size_t i = 0; i < n; ++i) at[i] = inputs[i] + begin;
    std::byte* const first = stream ? result : outputs[0] + begin;
    kernel(at.data(), n, first, size, scratch);
    for (size_t k = stream ? 0 : 1; k < outputs.size(); ++k) write(outputs[k] + begin, first, size);
  }
  if (tail > 0) {
    // One more vector, filled up with zeros, so that the last elements are computed as all others.
    std::memset(padded, 0, n * kAlignment);
    for (size_t i = 0; i < n; ++i) {
      at[i] = padded + i * kAlignment;
      std::memcpy(padded + i * kAlignment, inputs[i] + bytes - tail, tail);
    }
    kernel(at.data(), n, result, set.vector_bytes, scratch);
    for (std::byte* output : outputs) std::memcpy(output + bytes - tail, result, tail);
  }
  if (stream) StreamFence();
}

}  // namespace uccl::coll
