// Memory as kernels touch it: 16 bytes at once where addresses allow, and words that are shared
// with the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "csrc/fifo/host_device.h"

#if !defined(__CUDACC__) && !defined(__HIPCC__)
#include <atomic>
#endif

namespace uccl::cuda {

struct alignas(16) Vector16 {
  uint32_t words[4];
};

UCCL_HOST_DEVICE inline bool IsAligned(const void* p, uintptr_t to) {
  return reinterpret_cast<uintptr_t>(p) % to == 0;
}

// A value of any alignment.
template <class T>
UCCL_HOST_DEVICE inline T LoadAny(const std::byte* from) {
  T value;
  if (IsAligned(from, alignof(T))) return *reinterpret_cast<const T*>(from);
  memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
UCCL_HOST_DEVICE inline void StoreAny(std::byte* to, T value) {
  if (IsAligned(to, alignof(T))) {
    *reinterpret_cast<T*>(to) = value;
  } else {
    memcpy(to, &value, sizeof(T));
  }
}

namespace internal {

// `bytes` is a multiple of sizeof(Word); both ends are aligned to it.
template <class Word, class Group>
UCCL_HOST_DEVICE inline void CopyWords(Group& group, const std::byte* from, std::byte* to,
                                       uint64_t bytes) {
  const auto* source = reinterpret_cast<const Word*>(from);
  auto* target = reinterpret_cast<Word*>(to);
  const uint64_t words = bytes / sizeof(Word), step = group.size();
  uint64_t i = group.rank();
  // Four loads in flight for each thread.
  for (; i + 3 * step < words; i += 4 * step) {
    const Word a = source[i], b = source[i + step], c = source[i + 2 * step],
               d = source[i + 3 * step];
    target[i] = a;
    target[i + step] = b;
    target[i + 2 * step] = c;
    target[i + 3 * step] = d;
  }
  for (; i < words; i += step) target[i] = source[i];
}

template <class Word, class Group>
UCCL_HOST_DEVICE inline void CopyAs(Group& group, const std::byte* from, std::byte* to,
                                    uint64_t bytes) {
  uint64_t head = (sizeof(Word) - reinterpret_cast<uintptr_t>(to) % sizeof(Word)) % sizeof(Word);
  if (head > bytes) head = bytes;
  const uint64_t body = (bytes - head) / sizeof(Word) * sizeof(Word);
  for (uint64_t i = group.rank(); i < head; i += group.size()) to[i] = from[i];
  CopyWords<Word>(group, from + head, to + head, body);
  for (uint64_t i = head + body + group.rank(); i < bytes; i += group.size()) to[i] = from[i];
}

}  // namespace internal

// By the widest word at whose boundaries both sides can be; without a barrier.
template <class Group>
UCCL_HOST_DEVICE inline void CopyBytes(Group& group, const std::byte* from, std::byte* to,
                                       uint64_t bytes) {
  const uintptr_t apart = reinterpret_cast<uintptr_t>(from) ^ reinterpret_cast<uintptr_t>(to);
  if (apart % 16 == 0) {
    internal::CopyAs<Vector16>(group, from, to, bytes);
  } else if (apart % 8 == 0) {
    internal::CopyAs<uint64_t>(group, from, to, bytes);
  } else if (apart % 4 == 0) {
    internal::CopyAs<uint32_t>(group, from, to, bytes);
  } else if (apart % 2 == 0) {
    internal::CopyAs<uint16_t>(group, from, to, bytes);
  } else {
    internal::CopyAs<uint8_t>(group, from, to, bytes);
  }
}

template <class Group>
UCCL_HOST_DEVICE inline void ZeroBytes(Group& group, std::byte* to, uint64_t bytes) {
  uint64_t head = (16 - reinterpret_cast<uintptr_t>(to) % 16) % 16;
  if (head > bytes) head = bytes;
  const uint64_t vectors = (bytes - head) / 16;
  for (uint64_t i = group.rank(); i < head; i += group.size()) to[i] = std::byte{0};
  auto* body = reinterpret_cast<Vector16*>(to + head);
  for (uint64_t i = group.rank(); i < vectors; i += group.size()) body[i] = Vector16{};
  for (uint64_t i = head + 16 * vectors + group.rank(); i < bytes; i += group.size())
    to[i] = std::byte{0};
}

// *word = min(*word, value), among all threads of a launch. Relaxed: the word is read after the
// kernel has ended, which orders everything.
UCCL_HOST_DEVICE inline void AtomicMin(uint64_t* word, uint64_t value) {
#if UCCL_DEVICE_CODE
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  atomicMin(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
#elif !defined(__CUDACC__) && !defined(__HIPCC__)
  std::atomic_ref<uint64_t> shared(*word);
  uint64_t seen = shared.load(std::memory_order_relaxed);
  while (value < seen && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
#else
  (void)word, (void)value;  // the host's half of a kernel that only runs on the device
#endif
}

}  // namespace uccl::cuda
