// Tests of csrc/base/huge_pages.h against what the kernel says of this process's memory.
#include "csrc/base/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace uccl {
namespace {

constexpr size_t kHuge = size_t{2} << 20;

bool ReadSmaps(uintptr_t at, bool* advised) {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(smaps, line)) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream range(line);
    if (range >> std::hex >> begin >> dash >> end && dash == '-') inside = begin <= at && at < end;
    if (inside && line.rfind("VmFlags:", 0) == 0) {
      *advised = (line + " ").find(" hg ") != std::string::npos;
      return true;
    }
  }
  return false;
}

// Whether huge pages were asked for at `at`.
bool Advised(const void* at) {
  bool advised = false;
  EXPECT_TRUE(ReadSmaps(reinterpret_cast<uintptr_t>(at), &advised));
  return advised;
}

// Whole huge pages, with one more before and behind.
class Mapping final {
 public:
  explicit Mapping(size_t bytes) : bytes_(bytes + 3 * kHuge) {
    base_ = static_cast<char*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(static_cast<void*>(base_), MAP_FAILED);
    data_ = base_ + kHuge + -reinterpret_cast<uintptr_t>(base_) % kHuge;
  }
  ~Mapping() { munmap(base_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char* data() const { return data_; }

 private:
  const size_t bytes_;
  char *base_, *data_;
};

class HugePages : public ::testing::Test {
 protected:
  void SetUp() override {
    const Mapping probe(kHuge);
    bool advised = false;
    if (madvise(probe.data(), kHuge, MADV_HUGEPAGE) != 0 ||
        !ReadSmaps(reinterpret_cast<uintptr_t>(probe.data()), &advised)) {
      GTEST_SKIP() << "needs a kernel with transparent huge pages and /proc/self/smaps";
    }
  }
};

TEST_F(HugePages, Advise_TakesTheWholePagesInside) {
  const Mapping m(8 * kHuge);
  AdviseHugePages(m.data() + 64, 4 * kHuge);
  EXPECT_FALSE(Advised(m.data()));
  EXPECT_TRUE(Advised(m.data() + kHuge));
  EXPECT_TRUE(Advised(m.data() + 4 * kHuge - 1));
  EXPECT_FALSE(Advised(m.data() + 4 * kHuge)) << "the page that holds the end";
  AdviseHugePages(m.data() + 5 * kHuge, 2 * kHuge);
  EXPECT_TRUE(Advised(m.data() + 5 * kHuge));
  EXPECT_TRUE(Advised(m.data() + 7 * kHuge - 1));
  EXPECT_FALSE(Advised(m.data() + 7 * kHuge));
}

TEST_F(HugePages, Advise_LeavesSmallBuffers) {
  const Mapping m(4 * kHuge);
  AdviseHugePages(m.data(), kHugePagesFromBytes - 1);
  EXPECT_FALSE(Advised(m.data()));
  AdviseHugePages(m.data(), kHugePagesFromBytes);
  EXPECT_TRUE(Advised(m.data()));
}

TEST_F(HugePages, Advise_DoesNothingWhenSwitchedOff) {
  const Mapping m(4 * kHuge);
  UseHugePages(false);
  AdviseHugePages(m.data(), 4 * kHuge);
  UseHugePages(true);
  EXPECT_FALSE(Advised(m.data()));
}

TEST_F(HugePages, Advise_KeepsWhatIsThere) {
  const Mapping m(4 * kHuge);
  std::memset(m.data(), 7, 4 * kHuge);
  AdviseHugePages(m.data() + 1, 4 * kHuge - 1);
  for (size_t i = 0; i < 4 * kHuge; i += 4096) ASSERT_EQ(m.data()[i], 7) << i;
}

}  // namespace
}  // namespace uccl
