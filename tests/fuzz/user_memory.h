// Buffers that an application lends to a connection, and their contents.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "csrc/base/types.h"
#include "tests/fuzz/targets.h"

#if defined(__SANITIZE_ADDRESS__)
#define UCCL_FUZZ_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UCCL_FUZZ_ADDRESS_SANITIZER 1
#endif
#endif

namespace uccl::fuzz {

// Memory of an exact size, so that the address sanitizer sees every byte written beyond it, and any
// use after it was given back. Without the sanitizer guards find at least the former.
class UserMemory final {
 public:
  explicit UserMemory(size_t size)
      : size_(size), memory_(static_cast<std::byte*>(std::malloc(size + 2 * kGuardBytes))) {
    std::memset(memory_.get(), kGuard, size_ + 2 * kGuardBytes);
    std::memset(body().data(), kUntouched, size_);
  }
  MutableBytes body() { return {memory_.get() + kGuardBytes, size_}; }
  void CheckGuards() const {
    const auto intact = [](std::byte b) { return b == std::byte{kGuard}; };
    const std::byte* after = memory_.get() + kGuardBytes + size_;
    Require(std::all_of(memory_.get(), memory_.get() + kGuardBytes, intact) &&
                std::all_of(after, after + kGuardBytes, intact),
            "nothing is written beside a receive");
  }

  static constexpr uint8_t kUntouched = 0xcc;

 private:
#ifdef UCCL_FUZZ_ADDRESS_SANITIZER
  static constexpr size_t kGuardBytes = 0;
#else
  static constexpr size_t kGuardBytes = 64;
#endif
  static constexpr uint8_t kGuard = 0xa5;

  size_t size_;
  struct Freed {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Freed> memory_;
};

// The byte at `offset` of the message with tag number `tag`, on whichever side it is made.
std::byte ContentAt(uint64_t tag, uint64_t offset);
void FillContent(uint64_t tag, uint64_t offset, MutableBytes out);
bool IsContent(uint64_t tag, uint64_t offset, Bytes bytes);

}  // namespace uccl::fuzz
