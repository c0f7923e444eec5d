// Tests of csrc/shm/segment.h and host.h: what is shared, what is refused, what stays behind.
#include "csrc/shm/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "csrc/shm/host.h"

namespace uccl::shm {
namespace {

TEST(Segment, BothSidesSeeOneMemory) {
  auto mine = Segment::Make(5000, 77, 123);
  ASSERT_TRUE(mine.ok()) << mine.status().ToString();
  EXPECT_EQ(mine.value()->ring_bytes(), 8192u) << "rounded up";
  auto seen = Segment::Open(getpid(), mine.value()->fd(), 123, 9);
  ASSERT_TRUE(seen.ok()) << seen.status().ToString();
  EXPECT_EQ(seen.value()->header()->eager_buffer_bytes, 77);
  EXPECT_EQ(seen.value()->first_slot(), 9u);
  std::memcpy(seen.value()->data(9), "hello", 6);
  seen.value()->ring(9)->tail.store(6);
  EXPECT_STREQ(reinterpret_cast<const char*>(mine.value()->data(9)), "hello");
  EXPECT_EQ(mine.value()->ring(9)->tail.load(), 6u);
  // The neighbouring slots are untouched.
  EXPECT_EQ(mine.value()->ring(8)->tail.load() + mine.value()->ring(10)->tail.load(), 0u);
}

TEST(Segment, HasNoNameAndCannotBeCut) {
  const auto count = [] {
    size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      files += entry.exists();
    return files;
  };
  const size_t before = count();
  auto mine = Segment::Make(4096, 0, 1);
  ASSERT_TRUE(mine.ok());
  EXPECT_EQ(count(), before);
  EXPECT_NE(ftruncate(mine.value()->fd(), 0), 0);
  EXPECT_NE(ftruncate(mine.value()->fd(), 1 << 30), 0);
}

TEST(Segment, WhatIsNotTheRightOneIsRefused) {
  auto mine = Segment::Make(4096, 0, 1);
  ASSERT_TRUE(mine.ok());
  const auto nonce = Segment::Open(getpid(), mine.value()->fd(), 2, 0);
  ASSERT_FALSE(nonce.ok());
  EXPECT_EQ(nonce.status().code, StatusCode::kPeerLost);
  EXPECT_FALSE(Segment::Open(getpid(), mine.value()->fd(), 1, kMaxLocalProcesses).ok());
  EXPECT_FALSE(Segment::Open(getpid(), 1'000'000, 1, 0).ok());
  const int plain = open("/dev/null", O_RDWR);
  EXPECT_FALSE(Segment::Open(getpid(), plain, 1, 0).ok());
  close(plain);
  const int unsealed = memfd_create("test", MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, 1 << 20), 0);
  EXPECT_FALSE(Segment::Open(getpid(), unsealed, 1, 0).ok()) << "it could be cut";
  ASSERT_EQ(fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(Segment::Open(getpid(), unsealed, 1, 0).status().code, StatusCode::kProtocol)
      << "zeros are no header";
  close(unsealed);
  mine.value()->header()->ring_bytes = 5000;
  EXPECT_EQ(Segment::Open(getpid(), mine.value()->fd(), 1, 0).status().code, StatusCode::kProtocol);
}

TEST(HostAddress, TextAndBack) {
  const Address address{0xfedcba9876543210ull, 4711, 23, 5, 0x7fff00000000ull};
  const std::string text = EncodeAddress(address);
  EXPECT_EQ(text.find(' '), std::string::npos);
  const auto back = DecodeAddress(text);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back.value(), address);
  for (const std::string& wrong :
       {std::string(), std::string("shm/2:1:2:3:4:5"), std::string("shm/1:1:2:3:4"), text + ":1",
        text + "x", std::string("shm/1:1:2:3:4:g"),
        std::string("shm/1:1:2:3:4:11111111111111111")}) {
    EXPECT_FALSE(DecodeAddress(wrong).ok()) << wrong;
  }
}

TEST(HostAddress, IdentityIsThatOfTheMachine) {
  const auto first = HostIdentity(), second = HostIdentity();
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(first.value(), second.value());
}

}  // namespace
}  // namespace uccl::shm
