// Lines of equal tags, and the limited memory of withdrawn ones.
#include "csrc/core/tag_table.h"

#include <gtest/gtest.h>

namespace uccl::core {
namespace {

struct Entry {
  MessageInfo info;
  Entry* same_tag_next = nullptr;
};
Entry WithTag(uint64_t tag) {
  Entry entry;
  entry.info.tag = {tag, tag};
  return entry;
}

TEST(TagTable, OldestFirst) {
  TagTable<Entry> table;
  Entry a = WithTag(1), b = WithTag(1), c = WithTag(1), other = WithTag(2);
  EXPECT_EQ(table.Front(a.info.tag), nullptr);
  for (Entry* entry : {&a, &b, &other, &c}) table.Add(entry);
  EXPECT_EQ(table.Front(a.info.tag), &a);
  EXPECT_TRUE(table.Remove(&b)) << "from the middle";
  EXPECT_FALSE(table.Remove(&b));
  EXPECT_TRUE(table.Remove(&a));
  EXPECT_EQ(table.Front(a.info.tag), &c);
  table.Add(&a);
  EXPECT_TRUE(table.Remove(&c));
  EXPECT_EQ(table.Front(a.info.tag), &a);
  EXPECT_TRUE(table.Remove(&a));
  EXPECT_EQ(table.Front(a.info.tag), nullptr);
  EXPECT_FALSE(table.empty());
  EXPECT_TRUE(table.Remove(&other));
  EXPECT_TRUE(table.empty());
}

TEST(WithdrawnTags, TakenOnce) {
  WithdrawnTags tags;
  EXPECT_FALSE(tags.Take({1, 1}));
  tags.Add({1, 1});
  tags.Add({1, 1});
  EXPECT_FALSE(tags.Take({1, 2}));
  EXPECT_TRUE(tags.Take({1, 1}));
  EXPECT_FALSE(tags.Take({1, 1}));
}

TEST(WithdrawnTags, ForgetsTheOldest) {
  WithdrawnTags tags;
  for (uint64_t i = 0; i <= WithdrawnTags::kCapacity; ++i) tags.Add({i, 0});
  EXPECT_FALSE(tags.Take({0, 0}));
  EXPECT_TRUE(tags.Take({1, 0}));
  EXPECT_TRUE(tags.Take({WithdrawnTags::kCapacity, 0}));
}

}  // namespace
}  // namespace uccl::core
