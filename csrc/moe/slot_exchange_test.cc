// Where the parts of a low-latency exchange lie.
#include "csrc/moe/slot_exchange.h"

#include <gtest/gtest.h>

namespace uccl::moe {
namespace {

TEST(SlotLayout, PartsLieApartAndLimitsAreNamed) {
  SlotLayout l;
  l.ranks = 3, l.staging_rows = 5, l.slots = 15, l.most = 5, l.row_bytes = 33;
  l.first_byte = 160, l.first_counter = 7, l.first_channel = 4;
  EXPECT_TRUE(l.Check().ok()) << l.Check().ToString();
  EXPECT_EQ(l.stride(), 48u);
  EXPECT_EQ(l.staging(0), 160u);
  EXPECT_EQ(l.slot(0), 160u + 5 * 48);
  EXPECT_EQ(l.staging(1), 160u + 20 * 48);
  EXPECT_EQ(l.bytes(), 2u * 20 * 48);
  EXPECT_EQ(l.arrived(0), 7u);
  EXPECT_EQ(l.announced(0), 10u);
  EXPECT_EQ(l.arrived(1), 13u);
  EXPECT_EQ(l.counters(), 12u);
  const auto says = [&](auto change, const char* what) {
    SlotLayout bad = l;
    change(&bad);
    return bad.Check().detail.find(what) != std::string::npos;
  };
  EXPECT_TRUE(says([](SlotLayout* b) { b->ranks = 0; }, "0 ranks"));
  EXPECT_TRUE(says([](SlotLayout* b) { b->slots = b->row_bytes = 1u << 20; }, "64 GiB"));
  EXPECT_TRUE(says([](SlotLayout* b) { b->most = 16; }, "to receive"));
  EXPECT_TRUE(says([](SlotLayout* b) { b->first_channel = 63; }, "channels"));
}

}  // namespace
}  // namespace uccl::moe
