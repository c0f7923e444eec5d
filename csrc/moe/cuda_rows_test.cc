// The kernels of csrc/cuda/rows.h and fold.h give the bits of csrc/moe/rows.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "csrc/cuda/fold.h"
#include "csrc/cuda/rows.h"
#include "csrc/cuda/testing/launcher.h"
#include "csrc/moe/rows.h"

namespace uccl::moe {
namespace {

using cuda::Element;
using cuda::Launcher;

std::vector<int32_t> RandomIndex(size_t n, size_t rows, std::mt19937* rng) {
  std::vector<int32_t> index(n);
  for (int32_t& i : index) i = static_cast<int32_t>((*rng)() % (rows + 2)) - 2;
  return index;
}

template <class T>
std::shared_ptr<std::byte> Reachable(Launcher* launcher, const std::vector<T>& values) {
  auto memory = launcher->Allocate(values.size() * sizeof(T) + 1);
  if (!values.empty()) std::memcpy(memory.get(), values.data(), values.size() * sizeof(T));
  return memory;
}

template <class T>
bool Holds(const std::byte* memory, const std::vector<T>& want) {
  return want.empty() || std::memcmp(memory, want.data(), want.size() * sizeof(T)) == 0;
}

TEST(CudaRows, MovesWhatTakeRowsTakes) {
  std::mt19937 rng(3);
  for (Launcher* launcher : cuda::Launchers()) {
    SCOPED_TRACE(launcher->name());
    for (size_t row_bytes : {size_t{1}, size_t{6}, size_t{64}, size_t{1001}, size_t{4096}}) {
      const size_t rows = 1 + rng() % 9;
      std::vector<std::byte> given(rows * row_bytes);
      for (auto& b : given) b = static_cast<std::byte>(rng());
      const auto index = RandomIndex(rng() % 20, rows, &rng);
      std::vector<std::byte> want(index.size() * row_bytes);
      TakeRows(given.data(), row_bytes, index, /*fill=*/true, /*stream=*/false, want.data());

      const auto from = Reachable(launcher, given), at = Reachable(launcher, index);
      const auto to = launcher->Allocate(want.size() + 1);
      std::memset(to.get(), 0x5a, want.size());
      cuda::MoveRowsParams p;
      p.from = from.get(), p.from_rows = rows, p.from_stride = p.to_stride = row_bytes;
      p.from_index = reinterpret_cast<const int32_t*>(at.get());
      p.to = to.get(), p.to_rows = p.moves = index.size();
      p.channels = row_bytes, p.fill_missing = true;
      ASSERT_TRUE(launcher->Run(p).ok());
      EXPECT_TRUE(Holds(to.get(), want)) << row_bytes;
    }
  }
}

TEST(CudaRows, FoldsAsFoldRowsDoes) {
  std::mt19937 rng(4);
  std::normal_distribution<float> normal;
  const auto element = [](RowType t) {
    return t == RowType::kF32 ? Element::kF32 : Element::kBF16;
  };
  for (Launcher* launcher : cuda::Launchers()) {
    SCOPED_TRACE(launcher->name());
    for (size_t channels : {1, 7, 8, 9, 100, 1027}) {
      for (RowType from_type : {RowType::kF32, RowType::kBF16}) {
        for (RowType to_type : {RowType::kF32, RowType::kBF16}) {
          const size_t rows = 1 + rng() % 9, width = rng() % 5, tokens = rng() % 6;
          std::vector<std::byte> given(rows * channels * RowTypeBytes(from_type));
          for (size_t i = 0; i < rows * channels; ++i) {
            // Signed zeros and infinities too; no two NaN, whose sum's payload is the processor's.
            const float v = rng() % 9 == 0 ? -0.0f : rng() % 50 == 0 ? INFINITY : normal(rng);
            const uint32_t bits = std::bit_cast<uint32_t>(v);
            const uint32_t kept = from_type == RowType::kF32 ? bits : bits >> 16;
            std::memcpy(&given[i * RowTypeBytes(from_type)], &kept, RowTypeBytes(from_type));
          }
          const auto table = RandomIndex(tokens * width, rows, &rng);
          std::vector<std::byte> want(tokens * channels * RowTypeBytes(to_type));
          FoldRows(from_type, given.data(), channels, table, width, to_type, want.data());

          const auto from = Reachable(launcher, given), at = Reachable(launcher, table);
          const auto to = launcher->Allocate(want.size() + 1);
          cuda::FoldRowsParams p;
          p.from = from.get(), p.from_rows = rows;
          p.from_stride = channels * RowTypeBytes(from_type);
          p.table = reinterpret_cast<const int32_t*>(at.get());
          p.rows = tokens, p.width = static_cast<uint32_t>(width), p.channels = channels;
          p.to = to.get(), p.to_stride = channels * RowTypeBytes(to_type);
          p.from_element = element(from_type), p.to_element = element(to_type);
          ASSERT_TRUE(launcher->Run(p).ok());
          EXPECT_TRUE(Holds(to.get(), want)) << channels;
        }
      }
    }
  }
}

// The same launches, and the word alone says which buffer they mean.
TEST(CudaRows, BuffersInTurn) {
  for (Launcher* launcher : cuda::Launchers()) {
    SCOPED_TRACE(launcher->name());
    const auto from = Reachable(launcher, std::vector<float>{1, 2, 3, 4, 10, 20, 30, 40});
    const auto table = Reachable(launcher, std::vector<int32_t>{0, 1});
    const auto uses = Reachable(launcher, std::vector<uint64_t>{0});
    const auto copy = launcher->Allocate(48), sums = launcher->Allocate(8);
    cuda::MoveRowsParams move;
    move.from = from.get(), move.from_rows = move.to_rows = move.moves = 2;
    move.from_stride = move.to_stride = 8, move.channels = 8;
    move.to = copy.get();
    move.turn.uses = reinterpret_cast<const uint64_t*>(uses.get());
    move.from_turn = 16, move.to_turn = 32;
    cuda::FoldRowsParams fold;
    fold.from = from.get(), fold.from_rows = 2, fold.from_stride = fold.to_stride = 8;
    fold.table = reinterpret_cast<const int32_t*>(table.get()), fold.rows = 1, fold.width = 2;
    fold.to = sums.get(), fold.channels = 2;
    fold.turn = move.turn, fold.from_turn = 16;
    for (const float tens : {1.0f, 10.0f}) {
      *reinterpret_cast<uint64_t*>(uses.get()) = tens == 1 ? 4 : 7;
      ASSERT_TRUE(launcher->Run(move).ok());
      ASSERT_TRUE(launcher->Run(fold).ok());
      EXPECT_TRUE(Holds(sums.get(), std::vector<float>{4 * tens, 6 * tens}));
    }
    EXPECT_TRUE(Holds(copy.get(), std::vector<float>{1, 2, 3, 4, 0, 0, 0, 0, 10, 20, 30, 40}));
    fold.from_turn = 3;
    EXPECT_NE(CheckParams(fold).detail.find("aligned"), std::string::npos);
  }
}

// The bias comes last, before the one rounding; a row of the table that is outside is told.
TEST(CudaRows, FoldAddsTheBiasLastAndTellsOfFaults) {
  for (Launcher* launcher : cuda::Launchers()) {
    SCOPED_TRACE(launcher->name());
    // 2^-9 rounds away from 1 in bfloat16 unless both are added before it is rounded.
    const std::vector<uint16_t> rows = {0x3f80, 0x3f80, 0x3b00, 0x3b00};  // 1, 2^-9, two channels
    const auto from = Reachable(launcher, rows);
    const auto table = Reachable(launcher, std::vector<int32_t>{0, 1, 1, -1, 2, 0});
    const auto bias = Reachable(launcher, std::vector<float>{0.001953125f, 8.0f});
    const auto to = launcher->Allocate(12), fault = launcher->Allocate(8);
    cuda::FoldRowsParams p;
    p.from = from.get(), p.from_rows = 2, p.from_stride = 4;
    p.table = reinterpret_cast<const int32_t*>(table.get()), p.rows = 3, p.width = 2;
    p.bias = reinterpret_cast<const float*>(bias.get());
    p.to = to.get(), p.to_stride = 4, p.channels = 2;
    p.from_element = p.to_element = Element::kBF16;
    p.fault = reinterpret_cast<uint64_t*>(fault.get());
    *p.fault = cuda::kNoFault;
    ASSERT_TRUE(launcher->Run(p).ok());
    EXPECT_EQ(*p.fault, 4u);
    const auto* sums = reinterpret_cast<const uint16_t*>(to.get());
    EXPECT_EQ(sums[0], 0x3f80);  // 1 + 2^-9 + 2^-9 = 1 + 2^-8, a tie: even
    EXPECT_EQ(sums[1], 0x4110);  // 1 + 2^-9 + 8
    EXPECT_EQ(sums[2], 0x3b80);  // 2^-9 + 2^-9
    EXPECT_EQ(sums[4], 0x3f80);  // the outside one left out: 1 + 2^-9, nearer to 1
  }
}

}  // namespace
}  // namespace uccl::moe
