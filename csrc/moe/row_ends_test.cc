// Exchanges of rows in memory, against an oracle that sees all of them: one process with all ranks,
// one for each, and mixtures; rows that lie as they come, that spread, and that are added up.
#include "csrc/moe/row_ends.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/testing/sanitized.h"
#include "csrc/collectives/testing/fleet.h"

namespace uccl::moe {
namespace {

using coll::testing::Fleet;
using coll::testing::Outcome;

enum class Way : uint8_t { kAsTheyCome, kSpread, kSum };

// One rank's buffers and tables.
struct Side {
  std::vector<float> x, out;
  std::vector<int32_t> index, send_offsets, send_counts, receive_counts, places, vacant, table;
  std::vector<uint64_t> waited;
  RowExchange exchange;
  std::optional<RowSum> sum;
  std::vector<float> want;
};

struct Shape {
  uint32_t ranks = 1, tokens = 6, width = 2;
  uint64_t elements = 5;
  bool by_index = true;  // else rows leave as they lie
};

std::vector<Side> MakeSides(const Shape& s, Way way, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Side> sides(s.ranks);
  std::vector<std::vector<std::vector<int32_t>>> sent(s.ranks);  // rows by source and target
  for (uint32_t r = 0; r < s.ranks; ++r) {
    Side& side = sides[r];
    side.x.resize(s.tokens * s.ranks * s.elements);
    for (float& v : side.x) v = static_cast<float>(static_cast<int64_t>(random() % 2001) - 1000);
    sent[r].resize(s.ranks);
    int32_t next = 0;
    for (uint32_t d = 0; d < s.ranks; ++d) {
      const uint64_t some = random() % 4;  // nothing, everything, and between
      for (uint32_t t = 0; t < s.tokens; ++t) {
        if (some == 0 || (some > 1 && random() % 2 == 0)) continue;
        sent[r][d].push_back(s.by_index ? static_cast<int32_t>(random() % (s.tokens * s.ranks))
                                        : next++);
      }
      side.send_offsets.push_back(static_cast<int32_t>(side.index.size()));
      side.send_counts.push_back(static_cast<int32_t>(sent[r][d].size()));
      side.index.insert(side.index.end(), sent[r][d].begin(), sent[r][d].end());
    }
    if (s.by_index) side.index.push_back(-1);  // never empty; beyond all counts
  }
  for (uint32_t d = 0; d < s.ranks; ++d) {
    Side& side = sides[d];
    std::vector<const float*> come;
    for (uint32_t r = 0; r < s.ranks; ++r) {
      side.receive_counts.push_back(static_cast<int32_t>(sent[r][d].size()));
      for (int32_t row : sent[r][d])
        come.push_back(sides[r].x.data() + static_cast<size_t>(row) * s.elements);
    }
    const size_t rows = way == Way::kSum ? s.tokens : s.ranks * s.tokens * s.width + 2;
    side.out.assign(rows * s.elements, 77.0f);
    side.want.assign(rows * s.elements, way == Way::kSum ? 0.0f : 77.0f);
    const auto set = [&](size_t row, const float* values) {
      for (size_t e = 0; e < s.elements; ++e)
        side.want[row * s.elements + e] = values == nullptr ? 0.0f : values[e];
    };
    std::vector<int32_t> free(rows);
    std::iota(free.begin(), free.end(), 0);
    if (way == Way::kSpread) {
      std::shuffle(free.begin(), free.end(), random);
      for (const float* row : come) {
        for (uint32_t w = 0; w < s.width; ++w) {
          const bool none = random() % 3 == 0;
          side.places.push_back(none ? -1 : free.back());
          if (!none) set(static_cast<size_t>(free.back()), row), free.pop_back();
        }
      }
      side.places.resize((come.size() + 1) * s.width, -1);
    } else if (way == Way::kAsTheyCome) {
      for (size_t n = 0; n < come.size(); ++n) set(n, come[n]);
      free.erase(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(come.size()));
    } else {
      for (size_t t = 0; t < s.tokens; ++t) {
        for (uint32_t w = 0; w < s.width; ++w) {
          const bool none = come.empty() || random() % 3 == 0;
          const size_t entry = none ? 0 : random() % come.size();
          side.table.push_back(none ? -1 : static_cast<int32_t>(entry));
          for (size_t e = 0; !none && e < s.elements; ++e)
            side.want[t * s.elements + e] += come[entry][e];
        }
      }
    }
    if (way != Way::kSum) {  // all but one of the rows in which nothing comes
      std::sort(free.begin(), free.end());
      side.vacant.assign(free.begin(), free.end() - 1);
      side.vacant.insert(side.vacant.begin() + static_cast<std::ptrdiff_t>(side.vacant.size() / 2),
                         -1);
      for (int32_t row : side.vacant) {
        if (row >= 0) set(static_cast<size_t>(row), nullptr);
      }
    }
    side.waited.assign(s.ranks, 0);
    RowExchange& x = side.exchange;
    x.row_bytes = s.elements * sizeof(float);
    x.out = {reinterpret_cast<const std::byte*>(side.x.data()),
             s.tokens * s.ranks,
             nullptr,
             s.tokens * s.ranks,
             side.send_offsets,
             side.send_counts};
    if (s.by_index) x.out.index = side.index.data(), x.out.entries = side.index.size();
    auto* const out = reinterpret_cast<std::byte*>(side.out.data());
    x.in = {out, rows, nullptr, rows, 1, side.receive_counts};
    x.vacant = side.vacant.data(), x.num_vacant = side.vacant.size();
    if (way == Way::kSpread) {
      x.in.places = side.places.data(), x.in.width = s.width;
      x.in.entries = side.places.size() / s.width;
    } else if (way == Way::kSum) {
      x.in = {nullptr, come.size(), nullptr, come.size(), 1, side.receive_counts};
      side.sum = RowSum{side.table, s.width, RowType::kF32, RowType::kF32, out};
    }
  }
  return sides;
}

class RowEndsJob {
 public:
  RowEndsJob(std::vector<int> devices, const Shape& shape) : fleet_(std::move(devices)) {
    EXPECT_TRUE(fleet_.Start());
    op_ = fleet_.Compile(coll::OpKind::kRaggedAllToAll, coll::DType::kF32, coll::ReduceOp::kNone,
                         {static_cast<int64_t>(shape.tokens), 1}, /*site=*/1);
  }
  ~RowEndsJob() { fleet_.Shutdown(); }

  std::shared_ptr<Outcome> Submit(size_t rank, Side* side, int64_t run, bool with_ends = true) {
    auto outcome = std::make_shared<Outcome>();
    coll::Call call = fleet_.CallOf(op_, rank, run);
    auto ends = RowEnds::Make(side->exchange, side->sum, static_cast<uint32_t>(fleet_.ranks()),
                              side->waited.data());
    EXPECT_TRUE(ends.ok()) << ends.status().ToString();
    call.input = side->exchange.out.rows;
    call.output = reinterpret_cast<std::byte*>(side->out.data());
    call.ragged = ends.value()->Sizes();
    if (with_ends) call.ends = ends.value();
    call.done = [outcome](const Status& status) { outcome->Set(status); };
    fleet_[fleet_.process_of(rank)].Submit(std::move(call));
    return outcome;
  }

 private:
  Fleet fleet_;
  coll::testing::Operation op_;
};

void Check(const std::vector<int>& devices, Way way, Shape shape, int uses) {
  shape.ranks = static_cast<uint32_t>(std::accumulate(devices.begin(), devices.end(), 0));
  RowEndsJob job(devices, shape);
  for (int use = 0; use < uses; ++use) {
    std::vector<Side> sides = MakeSides(shape, way, 100 * shape.ranks + static_cast<uint64_t>(use));
    std::vector<std::shared_ptr<Outcome>> outcomes(shape.ranks);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < shape.ranks; ++i) {
      const uint32_t r = (i + static_cast<uint32_t>(use)) % shape.ranks;
      threads.emplace_back([&, r] { outcomes[r] = job.Submit(r, &sides[r], use); });
    }
    for (std::thread& t : threads) t.join();
    for (uint32_t r = 0; r < shape.ranks; ++r) {
      const Status status = outcomes[r]->Wait();
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(sides[r].out, sides[r].want) << "rank " << r << ", use " << use;
      for (uint64_t ns : sides[r].waited) EXPECT_GT(ns, 0u);
    }
  }
}

constexpr Way kWays[] = {Way::kAsTheyCome, Way::kSpread, Way::kSum};

TEST(RowEnds, EveryProcessModelAndWay) {
  for (const Way way : kWays) {
    for (const std::vector<int>& devices :
         std::vector<std::vector<int>>{{1}, {5}, {1, 1, 1}, {2, 2}, {1, 3}}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(way)) + " on " + std::to_string(devices.size()));
      Check(devices, way, {}, UnderSanitizers(4, 12));
      Check(devices, way, {.tokens = 3, .width = 1, .by_index = false}, 3);
    }
  }
}

// Past the caches, in parts that threads share, and in messages that are granted or lent.
TEST(RowEnds, LargeRows) {
  for (const Way way : kWays) {
    Check({4}, way, {.tokens = 40, .elements = 20'001}, 2);
    Check({2, 1}, way, {.tokens = 40, .elements = 20'001}, 2);
  }
}

TEST(RowEnds, RanksThatDisagreeFailTogether) {
  Shape shape;
  shape.ranks = 3;
  {
    RowEndsJob job({3}, shape);
    std::vector<Side> sides = MakeSides(shape, Way::kSum, 5);
    ++sides[1].receive_counts[2];
    sides[1].exchange.in.num_rows = ++sides[1].exchange.in.entries;
    std::vector<std::shared_ptr<Outcome>> outcomes;
    for (uint32_t r = 0; r < 3; ++r) outcomes.push_back(job.Submit(r, &sides[r], 1));
    for (auto& outcome : outcomes) {
      const Status status = outcome->Wait();
      EXPECT_EQ(status.code, StatusCode::kInvalidArgument) << status.ToString();
      EXPECT_NE(status.ToString().find("which expects"), std::string::npos) << status.ToString();
    }
  }
  RowEndsJob job({3}, shape);
  std::vector<Side> sides = MakeSides(shape, Way::kSum, 5);
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (uint32_t r = 0; r < 3; ++r)
    outcomes.push_back(job.Submit(r, &sides[r], 1, /*with_ends=*/r != 1));
  for (auto& outcome : outcomes) {
    const Status status = outcome->Wait();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.ToString().find("in another way"), std::string::npos) << status.ToString();
  }
}

TEST(RowEnds, RanksOfOtherProcessesThatDisagreeFailTogether) {
  Shape shape;
  shape.ranks = 3;
  RowEndsJob job({2, 1}, shape);
  std::vector<Side> sides = MakeSides(shape, Way::kSum, 6);
  ++sides[2].receive_counts[0];
  sides[2].exchange.in.num_rows = ++sides[2].exchange.in.entries;
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (uint32_t r = 0; r < 3; ++r) outcomes.push_back(job.Submit(r, &sides[r], 1));
  EXPECT_FALSE(outcomes[2]->Wait().ok());
  for (auto& outcome : outcomes) (void)outcome->Wait();
}

TEST(RowEnds, TablesThatDoNotFitAreRefused) {
  Shape shape;
  shape.ranks = 2;
  const auto refused = [&](Way way, const auto& spoil) {
    std::vector<Side> sides = MakeSides(shape, way, 7);
    spoil(&sides[0]);
    const auto made = RowEnds::Make(sides[0].exchange, sides[0].sum, 2, sides[0].waited.data());
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code, StatusCode::kInvalidArgument);
  };
  refused(Way::kSpread, [](Side* s) { s->index[0] = 12; });
  refused(Way::kSpread, [](Side* s) { s->places[0] = 1000; });
  refused(Way::kAsTheyCome, [](Side* s) { s->vacant[0] = 1000; });
  refused(Way::kAsTheyCome, [](Side* s) { s->send_counts[1] = 1000; });
  refused(Way::kAsTheyCome, [](Side* s) { s->receive_counts[0] = -1; });
  refused(Way::kSum, [](Side* s) { s->table[0] = 1000; });
  refused(Way::kSum, [](Side* s) { s->exchange.row_bytes = 0; });
}

}  // namespace
}  // namespace uccl::moe
