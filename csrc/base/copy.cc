// The loops of copy.h. Both take what is before the first whole vector of the destination, and
// after the last, apart, so that all stores in between are aligned: a store across a line costs
// two.
#include "csrc/base/copy.h"

#include <cstdint>
#include <cstring>

#ifdef UCCL_HAVE_X86_LEVELS
#include <immintrin.h>
#endif

namespace uccl {
namespace {

void CopyByLibc(void* to, const void* from, size_t bytes) {
  // Null is allowed with no bytes, which libc does not promise.
  if (bytes > 0) std::memcpy(to, from, bytes);
}

#ifdef UCCL_HAVE_X86_LEVELS

constexpr size_t kLineBytes = 64;
// Below this libc is as fast or faster. GB/s read and written, libc and the loops for AVX-512 and
// AVX2, on a Xeon with all of them: 4 KB 287, 382, 277; with the destination 16 bytes further in
// its page 199, 233, 224; 64 KB 78, 81, 74; 1 MB 41, 50, 33. On another machine libc copied 64 KB
// at that distance with 1.6 instead of 34 GB/s, which is what the AVX2 loop is kept for.
constexpr size_t kOwnLoopBytes = 4096;

// Four loads go before four stores: a load waits for an earlier store whose address is equal in its
// lower 12 bits, which all copies with an unlucky distance meet.
#define UCCL_DEFINE_COPY_LOOPS(name, features, Vector, load, store, stream)           \
  UCCL_BEGIN_TARGET(features)                                                         \
  template <bool kStream>                                                             \
  void name(std::byte* to, const std::byte* from, size_t bytes) {                     \
    constexpr size_t kVector = sizeof(Vector);                                        \
    for (size_t i = 0; i < bytes; i += 4 * kVector) {                                 \
      const Vector a = load(reinterpret_cast<const Vector*>(from + i));               \
      const Vector b = load(reinterpret_cast<const Vector*>(from + i + kVector));     \
      const Vector c = load(reinterpret_cast<const Vector*>(from + i + 2 * kVector)); \
      const Vector d = load(reinterpret_cast<const Vector*>(from + i + 3 * kVector)); \
      Vector* const at = reinterpret_cast<Vector*>(to + i);                           \
      if constexpr (kStream) {                                                        \
        stream(at, a);                                                                \
        stream(at + 1, b);                                                            \
        stream(at + 2, c);                                                            \
        stream(at + 3, d);                                                            \
      } else {                                                                        \
        store(at, a);                                                                 \
        store(at + 1, b);                                                             \
        store(at + 2, c);                                                             \
        store(at + 3, d);                                                             \
      }                                                                               \
    }                                                                                 \
  }                                                                                   \
  UCCL_END_TARGET

UCCL_DEFINE_COPY_LOOPS(LoopSse2, "sse2", __m128i, _mm_loadu_si128, _mm_store_si128,
                       _mm_stream_si128)
UCCL_DEFINE_COPY_LOOPS(LoopAvx2, UCCL_TARGET_AVX2, __m256i, _mm256_loadu_si256, _mm256_store_si256,
                       _mm256_stream_si256)
UCCL_DEFINE_COPY_LOOPS(LoopAvx512, UCCL_TARGET_AVX512, __m512i, _mm512_loadu_si512,
                       _mm512_store_si512, _mm512_stream_si512)

// `kStep` bytes a turn of `kLoop`.
template <auto kLoop, size_t kStep>
void Copy(void* to, const void* from, size_t bytes) {
  if (bytes < kOwnLoopBytes) {
    CopyByLibc(to, from, bytes);
    return;
  }
  auto* const t = static_cast<std::byte*>(to);
  const auto* const f = static_cast<const std::byte*>(from);
  const size_t head = -reinterpret_cast<uintptr_t>(t) % kLineBytes;
  const size_t body = (bytes - head) / kStep * kStep;
  std::memcpy(t, f, head);
  kLoop(t + head, f + head, body);
  std::memcpy(t + head + body, f + head + body, bytes - head - body);
}

#endif  // UCCL_HAVE_X86_LEVELS

}  // namespace

CopyFunction CopyBytesAt(VectorLevel level) {
#ifdef UCCL_HAVE_X86_LEVELS
  switch (level) {
    case VectorLevel::kAvx512:
      return &Copy<&LoopAvx512<false>, 256>;
    case VectorLevel::kAvx2:
      return &Copy<&LoopAvx2<false>, 128>;
    case VectorLevel::kBaseline:  // libc may have better instructions than this build knows of
      break;
  }
#endif
  (void)level;
  return &CopyByLibc;
}

CopyFunction StreamBytesAt(VectorLevel level) {
#ifdef UCCL_HAVE_X86_LEVELS
  switch (level) {
    case VectorLevel::kAvx512:
      return &Copy<&LoopAvx512<true>, 256>;
    case VectorLevel::kAvx2:
      return &Copy<&LoopAvx2<true>, 128>;
    case VectorLevel::kBaseline:
      return &Copy<&LoopSse2<true>, 64>;
  }
#endif
  (void)level;
  return &CopyByLibc;
}

void CopyBytes(void* to, const void* from, size_t bytes) {
  static const CopyFunction copy = CopyBytesAt(BestVectorLevel());
  static const CopyFunction stream = StreamBytesAt(BestVectorLevel());
  if (bytes < kStreamBytes) {
    copy(to, from, bytes);
    return;
  }
  stream(to, from, bytes);
  StreamFence();
}

void StreamBytes(void* to, const void* from, size_t bytes) {
  static const CopyFunction stream = StreamBytesAt(BestVectorLevel());
  stream(to, from, bytes);
}

void StreamFence() {
#ifdef UCCL_HAVE_X86_LEVELS
  _mm_sfence();
#endif
}

}  // namespace uccl
