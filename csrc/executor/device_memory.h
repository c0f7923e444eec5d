// Memory of a device (cuda/device.h) with an owner.
#pragma once

#include <cstddef>
#include <memory>

#include "csrc/base/status.h"
#include "csrc/cuda/device.h"

namespace uccl::executor {

// Freed with the last copy; never given up before by whoever a kernel may still serve.
using DeviceMemory = std::shared_ptr<std::byte>;

inline Result<DeviceMemory> AllocateOn(const cuda::Device& device, size_t bytes) {
  Result<std::byte*> memory = device.allocate(bytes);
  if (!memory.ok()) return memory.status();
  return DeviceMemory(memory.value(), device.free);
}

inline Result<DeviceMemory> AllocatePinned(const cuda::Device& device, size_t bytes) {
  Result<std::byte*> memory = device.allocate_pinned(bytes);
  if (!memory.ok()) return memory.status();
  return DeviceMemory(memory.value(), device.free_pinned);
}

}  // namespace uccl::executor
