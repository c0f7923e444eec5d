// Memory of a FIFO between host threads. See host_fifo.h.
#include "csrc/fifo/host_fifo.h"

#include <string>

namespace uccl::fifo {

HostFifo::HostFifo(size_t capacity)
    : capacity_(capacity), slots_(std::make_unique<Slot[]>(capacity)) {}

Result<std::unique_ptr<HostFifo>> HostFifo::Make(size_t capacity) {
  if (capacity < 1 || capacity > kMaxCapacity) {
    return Status::Error(StatusCode::kInvalidArgument, "a FIFO of " + std::to_string(capacity) +
                                                           " commands; the capacity must be 1 to " +
                                                           std::to_string(kMaxCapacity));
  }
  return std::unique_ptr<HostFifo>(new HostFifo(capacity));
}

FifoView HostFifo::view() {
  FifoView view;
  view.slots = slots_.get();
  view.tail = &control_.tail;
  view.stopped = &control_.stopped;
  view.head = &head_;
  view.cached_tail = &cached_tail_;
  view.capacity = capacity_;
  return view;
}

}  // namespace uccl::fifo
