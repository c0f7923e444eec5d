// Every kept input of every fuzz target, and seeded variations of them, through the same functions
// that libFuzzer calls: a finding stays found, without clang and in seconds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "csrc/core/testing/random.h"
#include "tests/fuzz/allocation_meter.h"
#include "tests/fuzz/targets.h"

namespace uccl::fuzz {
namespace {

using core::testing::Random;

constexpr uint64_t kVariations = 3000;

std::vector<std::byte> Contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

// In the order of their names, which is the same everywhere.
std::vector<std::filesystem::path> Corpus(const Target& target) {
  const char* root = std::getenv("UCCL_SOURCE_ROOT");
  const auto folder = std::filesystem::path(root == nullptr ? "." : root) / "tests/fuzz/corpus";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder / target.name))
    files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

class FuzzReplay : public ::testing::TestWithParam<Target> {
 protected:
  void Run(Bytes input) {
    try {
      GetParam().run(input);
    } catch (const Finding& finding) {
      ADD_FAILURE() << "this does not hold: " << finding.what();
    }
    EXPECT_EQ(MeteredBytes(), 0) << "memory is given back";
  }
};

TEST_P(FuzzReplay, KeptInputs) {
  const auto files = Corpus(GetParam());
  EXPECT_GE(files.size(), 10u) << "the corpus was not found";
  for (const auto& path : files) {
    SCOPED_TRACE(path.filename().string());
    Run(Contents(path));
  }
}

TEST_P(FuzzReplay, VariationsOfKeptInputs) {
  const auto files = Corpus(GetParam());
  ASSERT_FALSE(files.empty());
  for (uint64_t seed = 1; seed <= kVariations; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    std::vector<std::byte> input = Contents(files[random.Below(files.size())]);
    const std::vector<std::byte> other = Contents(files[random.Below(files.size())]);
    if (random.Chance(0.5)) {  // the end of another one
      const size_t record = std::max<size_t>(GetParam().record_bytes, 1);
      input.resize(random.Below(input.size() / record + 1) * record);
      const size_t from = random.Below(other.size() / record + 1) * record;
      input.insert(input.end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
    }
    for (uint64_t i = random.Below(8); i > 0 && !input.empty(); --i)
      input[random.Below(input.size())] = static_cast<std::byte>(random.Next());
    Run(input);
  }
}

// Were the harness not to throw, or not to look, the two tests above could not fail.
TEST(FuzzHarness, ThrowsWhatItFinds) {
  EXPECT_THROW(Require(false, "never"), Finding);
  EXPECT_NO_THROW(Require(true, "always"));
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplay,
                         ::testing::ValuesIn(Targets().begin(), Targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace uccl::fuzz
