// The kernel of limit.h on every launcher.
#include "csrc/cuda/limit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "csrc/cuda/testing/launcher.h"

namespace uccl::cuda {
namespace {

TEST(Limit, NotesTheFirstThatIsAbove) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    constexpr uint64_t kCount = 1000;
    const auto memory = launcher->Allocate(kCount * sizeof(int32_t));
    const auto pinned = launcher->AllocatePinned(sizeof(uint64_t));
    auto* const values = reinterpret_cast<int32_t*>(memory.get());
    auto* const fault = reinterpret_cast<uint64_t*>(pinned.get());
    const LimitParams p{values, kCount, 7, fault};
    *fault = kNoFault;
    std::fill_n(values, kCount, 7);
    values[3] = -5;
    ASSERT_TRUE(launcher->Run(p).ok());
    EXPECT_EQ(*fault, kNoFault);
    values[999] = 8, values[40] = 2'000'000'000, values[500] = 9;
    ASSERT_TRUE(launcher->Run(p).ok());
    EXPECT_EQ(LimitIndex(*fault), 40u);
    EXPECT_EQ(LimitValue(*fault), 2'000'000'000);
  }
}

TEST(Limit, RefusesWhatItCannotNote) {
  EXPECT_TRUE(CheckParams(LimitParams{}).ok());
  LimitParams p;
  p.count = uint64_t{1} << 32;
  EXPECT_NE(CheckParams(p).detail.find("below 2^32"), std::string::npos);
  p.count = 1;
  EXPECT_NE(CheckParams(p).detail.find("without an address"), std::string::npos);
}

}  // namespace
}  // namespace uccl::cuda
