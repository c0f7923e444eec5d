// A FIFO whose producers may be on a GPU, and its consumer, a test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "csrc/cuda/testing/launcher.h"
#include "csrc/fifo/command.h"
#include "csrc/fifo/host_fifo.h"
#include "csrc/fifo/slot.h"

namespace uccl::cuda {

struct PinnedFifo {
  PinnedFifo(Launcher* launcher, size_t capacity)
      : slots(launcher->AllocatePinned(capacity * sizeof(fifo::Slot))),
        words(launcher->Allocate(2 * 256)),
        control_memory(launcher->AllocatePinned(sizeof(fifo::FifoControl))),
        control(new (control_memory.get()) fifo::FifoControl()),
        consumer({reinterpret_cast<const fifo::Slot*>(slots.get()), capacity}, control) {
    view.slots = reinterpret_cast<fifo::Slot*>(slots.get());
    view.tail = &control->tail, view.stopped = &control->stopped;
    view.head = reinterpret_cast<uint64_t*>(words.get());
    view.cached_tail = reinterpret_cast<uint64_t*>(words.get() + 256);
    view.capacity = capacity;
  }
  void Take() {
    fifo::CommandWords batch[5];
    for (size_t i = 0, n = consumer.Poll(batch); i < n; ++i) {
      fifo::Command c;
      EXPECT_EQ(fifo::DecodeCommand(batch[i], &c), fifo::CommandFault::kNone);
      taken.push_back(c);
    }
  }

  std::shared_ptr<std::byte> slots, words, control_memory;
  fifo::FifoControl* control;
  fifo::FifoConsumer consumer;
  fifo::FifoView view;
  std::vector<fifo::Command> taken;
};

}  // namespace uccl::cuda
