// A word in front of every allocation says how much it counts for. See allocation_meter.h.
#include "tests/fuzz/allocation_meter.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace uccl::fuzz {
namespace {

// Keeps what follows aligned for anything.
constexpr size_t kFrontBytes = alignof(std::max_align_t);
static_assert(kFrontBytes >= sizeof(int64_t));

thread_local bool counting = false;
thread_local int64_t counted_bytes = 0;

void* Allocate(size_t size) {
  auto* memory = static_cast<std::byte*>(std::malloc(kFrontBytes + size));
  if (memory == nullptr) return nullptr;
  const int64_t counts = counting ? static_cast<int64_t>(size) : 0;
  std::memcpy(memory, &counts, sizeof(counts));
  counted_bytes += counts;
  return memory + kFrontBytes;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  auto* front = static_cast<std::byte*>(memory) - kFrontBytes;
  int64_t counts = 0;
  std::memcpy(&counts, front, sizeof(counts));
  counted_bytes -= counts;
  std::free(front);
}

}  // namespace

Metered::Metered() { counting = true; }
Metered::~Metered() { counting = false; }
int64_t MeteredBytes() { return counted_bytes; }

}  // namespace uccl::fuzz

// All forms but the aligned ones, because every delete of these looks for the word in front. Not
// inlined: gcc would see free() meet operator new and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  if (void* memory = uccl::fuzz::Allocate(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return uccl::fuzz::Allocate(size);
}
[[gnu::noinline]] void* operator new[](size_t size) { return operator new(size); }
[[gnu::noinline]] void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return uccl::fuzz::Allocate(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { uccl::fuzz::Free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { uccl::fuzz::Free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  uccl::fuzz::Free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept { uccl::fuzz::Free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept {
  uccl::fuzz::Free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  uccl::fuzz::Free(memory);
}
