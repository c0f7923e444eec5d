// Every interleaving of two producers and one consumer over a FIFO of two slots
// (testing/interleave.h), on a weakly ordered machine; and that weakening any part that the proof
// needs is found.
#include "csrc/fifo/testing/interleave.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/testing/sanitized.h"
#include "csrc/fifo/fifo_device.h"
#include "csrc/fifo/host_fifo.h"

namespace uccl::fifo::testing {
namespace {

// One part taken away at a time.
enum class Mutation {
  kNone,
  kSlotStoredRelaxed,
  kSlotReadRelaxed,
  kSecondWordWithoutPhase,
  kPhaseIgnoresTheLap,
  kNoFlowControl,
  kTailNeverPublished,
};

class Mutated final : public ModelMemory {
 public:
  Mutated(const ModelMemory& memory, Mutation mutation, const FifoView& fifo)
      : ModelMemory(memory), mutation_(mutation), fifo_(fifo) {}

  uint64_t LoadAcquireSystem(const uint64_t* p) {
    const auto* base = reinterpret_cast<const uint64_t*>(fifo_.slots);
    const bool of_slot = p >= base && p < base + 2 * fifo_.capacity;
    const uint64_t value = mutation_ == Mutation::kSlotReadRelaxed && of_slot
                               ? LoadRelaxed(p)
                               : ModelMemory::LoadAcquireSystem(p);
    if (of_slot && (p - base) % 2 == 0) first_word_ = value;
    // As if only the first word told whether the slot is fresh.
    if (mutation_ == Mutation::kSecondWordWithoutPhase && of_slot && (p - base) % 2 == 1) {
      return (value & ~kPhaseBit) | (first_word_ & kPhaseBit);
    }
    return value;
  }
  uint64_t LoadAcquireDevice(const uint64_t* p) {
    const uint64_t value = ModelMemory::LoadAcquireDevice(p);
    // As if there were always room.
    return mutation_ == Mutation::kNoFlowControl ? value + slot_ : value;
  }
  void StoreReleaseSystem(uint64_t* p, uint64_t v) {
    if (mutation_ == Mutation::kTailNeverPublished && p == fifo_.tail) return;
    ModelMemory::StoreReleaseSystem(p, v);
  }
  void StorePairReleaseSystem(uint64_t* pair, uint64_t v0, uint64_t v1) {
    if (mutation_ == Mutation::kPhaseIgnoresTheLap) v0 |= kPhaseBit, v1 |= kPhaseBit;
    if (mutation_ == Mutation::kSlotStoredRelaxed) {
      StoreRelaxed(pair, v0);
      StoreRelaxed(pair + 1, v1);
    } else {
      ModelMemory::StorePairReleaseSystem(pair, v0, v1);
    }
  }
  uint64_t FetchAddDevice(uint64_t* p, uint64_t v) {
    return slot_ = ModelMemory::FetchAddDevice(p, v);
  }

 private:
  const Mutation mutation_;
  const FifoView fifo_;
  uint64_t first_word_ = 0, slot_ = 0;
};

// Producer p pushes pushes[p] commands, each after writing a cell that the command names in both
// words. The consumer takes all, in batches of at most `batch`.
Exploration Explore(Mutation mutation, size_t capacity, std::vector<int> pushes, size_t batch) {
  const auto fifo = std::move(HostFifo::Make(capacity).value());
  const FifoView view = fifo->view();
  int total = 0;
  for (const int n : pushes) total += n;
  std::array<uint64_t, 16> cells{};
  Explorer explorer;
  int first = 0;
  for (const int n : pushes) {
    explorer.Add([&cells, view, mutation, first, n](const ModelMemory& model) {
      Mutated memory(model, mutation, view);
      for (int i = first; i < first + n; ++i) {
        memory.StoreRelaxed(&cells[i], 100 + i);
        const auto id = static_cast<uint64_t>(i) + 1;
        memory.Require(PushWords(memory, view, {id, id}), "a push said that the FIFO stopped");
      }
    });
    first += n;
  }
  explorer.Add([&, view, mutation, total, batch](const ModelMemory& model) {
    BasicFifoConsumer<Mutated> consumer(fifo->slots(), fifo->control(),
                                        Mutated(model, mutation, view));
    Mutated memory(model, mutation, view);
    std::vector<int> next(pushes.size());
    std::vector<CommandWords> out(batch);
    for (int taken = 0; taken < total;) {
      size_t count = 0;
      memory.WaitUntil([&] { return (count = consumer.Poll(out)) > 0; });
      for (size_t k = 0; k < count; ++k, ++taken) {
        const uint64_t id = out[k].word0 & ~kPhaseBit;
        memory.Require((out[k].word1 & ~kPhaseBit) == id, "half a command");
        memory.Require(id >= 1 && id <= static_cast<uint64_t>(total), "no command at all");
        // Which producer, and whether in its order, each once.
        int index = static_cast<int>(id) - 1;
        size_t p = 0;
        while (index >= pushes[p]) index -= pushes[p++];
        memory.Require(next[p]++ == index, "a command twice, lost or out of order");
        memory.Require(memory.LoadRelaxed(&cells[id - 1]) == 99 + id, "a command before its data");
      }
    }
  });
  return explorer.Run(2'000'000);
}

struct Instance {
  size_t capacity;
  std::vector<int> pushes;
  size_t batch;
};

TEST(Interleave, Fifo_EveryInterleavingIsRight) {
  // Sanitizers see nothing here that the plain build does not, and take 20 times as long.
  std::vector<Instance> instances = {{2, {2, 1}, 2}};
  if (!kSanitized) {
    instances.insert(instances.end(), {{2, {2, 1}, 1}, {2, {2, 2}, 2}, {1, {2, 1}, 2}});
  }
  constexpr size_t kLeastStates = UnderSanitizers(1'000, 50'000);
  size_t states = 0;
  for (const Instance& i : instances) {
    const Exploration result = Explore(Mutation::kNone, i.capacity, i.pushes, i.batch);
    EXPECT_EQ(result.violation, "") << "capacity " << i.capacity << ", batch " << i.batch;
    EXPECT_TRUE(result.complete);
    states += result.states;
  }
  EXPECT_GT(states, kLeastStates) << "the threads no longer meet";
}

TEST(Interleave, Fifo_WithoutItsReleaseIsFound) {
  EXPECT_EQ(Explore(Mutation::kSlotStoredRelaxed, 2, {1, 1}, 1).violation,
            "a command before its data");
}

TEST(Interleave, Fifo_WithoutItsAcquireIsFound) {
  EXPECT_EQ(Explore(Mutation::kSlotReadRelaxed, 2, {1, 1}, 1).violation,
            "a command before its data");
}

TEST(Interleave, Fifo_WithOnePhaseBitIsFound) {
  EXPECT_EQ(Explore(Mutation::kSecondWordWithoutPhase, 2, {1, 1}, 1).violation, "half a command");
}

TEST(Interleave, Fifo_WithoutPhasesByLapIsFound) {
  EXPECT_NE(Explore(Mutation::kPhaseIgnoresTheLap, 2, {2, 1}, 1).violation, "");
}

TEST(Interleave, Fifo_WithoutFlowControlIsFound) {
  EXPECT_NE(Explore(Mutation::kNoFlowControl, 2, {2, 1}, 1).violation, "");
}

TEST(Interleave, Fifo_WhoseTailIsNotPublishedIsFound) {
  EXPECT_EQ(Explore(Mutation::kTailNeverPublished, 2, {2, 1}, 1).violation,
            "a state from which not all threads end");
}

// The checker itself, on the smallest cases with known answers.

TEST(Interleave, Explorer_MessagePassingNeedsReleaseAndAcquire) {
  for (const bool release : {false, true}) {
    for (const bool acquire : {false, true}) {
      uint64_t data = 0, flag = 0;
      Explorer explorer;
      explorer.Add([&](ModelMemory memory) {
        memory.StoreRelaxed(&data, 1);
        release ? memory.StoreReleaseSystem(&flag, 1) : memory.StoreRelaxed(&flag, 1);
      });
      explorer.Add([&](ModelMemory memory) {
        const uint64_t seen = acquire ? memory.LoadAcquireSystem(&flag) : memory.LoadRelaxed(&flag);
        if (seen == 1) memory.Require(memory.LoadRelaxed(&data) == 1, "stale");
      });
      const Exploration result = explorer.Run(1000);
      EXPECT_EQ(result.violation, release && acquire ? "" : "stale");
    }
  }
}

TEST(Interleave, Explorer_FetchAddHandsOutEachNumberOnce) {
  uint64_t head = 0;
  std::array<uint64_t, 3> taken{};
  Explorer explorer;
  for (int t = 0; t < 3; ++t) {
    explorer.Add([&](ModelMemory memory) {
      const uint64_t n = memory.FetchAddDevice(&head, 1);
      memory.Require(memory.FetchAddDevice(&taken[n], 1) == 0, "twice");
    });
  }
  const Exploration result = explorer.Run(10'000);
  EXPECT_EQ(result.violation, "");
  EXPECT_TRUE(result.complete);
}

// Store buffering: both threads may miss the other's store, even with release and acquire.
TEST(Interleave, Explorer_ShowsStoreBuffering) {
  uint64_t x = 0, y = 0, missed = 0;
  Explorer explorer;
  const auto side = [&missed](uint64_t* mine, const uint64_t* theirs) {
    return [=, &missed](ModelMemory memory) {
      memory.StoreReleaseSystem(mine, 1);
      if (memory.LoadAcquireSystem(theirs) == 0) {
        memory.Require(memory.FetchAddDevice(&missed, 1) == 0, "both missed");
      }
    };
  };
  explorer.Add(side(&x, &y));
  explorer.Add(side(&y, &x));
  EXPECT_EQ(explorer.Run(1000).violation, "both missed");
}

TEST(Interleave, Explorer_TooManyStatesIsNoSuccess) {
  const Exploration result = [] {
    uint64_t x = 0;
    Explorer explorer;
    for (int t = 0; t < 3; ++t) {
      explorer.Add([&](ModelMemory memory) {
        for (int i = 0; i < 4; ++i) memory.FetchAddDevice(&x, 1);
      });
    }
    return explorer.Run(20);
  }();
  EXPECT_FALSE(result.complete);
}

}  // namespace
}  // namespace uccl::fifo::testing
