// Every row makes a controller that keeps the promises of the interface; unknown names list the
// known ones.
#include "csrc/core/cc/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "csrc/core/cc/limits.h"
#include "csrc/core/cc/testing/driver.h"
#include "csrc/core/testing/random.h"

namespace uccl::core {
namespace {

TEST(CongestionControllers, UnknownNameListsTheKnown) {
  const auto made = MakeCongestionController("warp", {});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code, StatusCode::kInvalidArgument);
  EXPECT_NE(made.status().detail.find("`warp`"), std::string::npos);
  for (const CongestionControllerRow& row : CongestionControllers()) {
    EXPECT_NE(made.status().detail.find(row.name), std::string::npos) << made.status().detail;
  }
}

TEST(CongestionControllers, NamesAreUniqueAndExplained) {
  std::set<std::string> names;
  for (const CongestionControllerRow& row : CongestionControllers()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    for (const char* text : {row.summary, row.source, row.good_for}) {
      EXPECT_FALSE(std::string(text).empty()) << row.name;
    }
  }
  EXPECT_TRUE(names.contains("none"));
}

using testing::CongestionDriver;

// What a sender gets through: whole windows, or the pace if that is slower.
double Throughput(const CongestionDriver& d, Nanos rtt) {
  const double by_window = static_cast<double>(d.window()) / ToSeconds(rtt);
  return d.rate() == 0 ? by_window : std::min(by_window, static_cast<double>(d.rate()));
}

// Round trips without any sign of congestion.
void Calm(CongestionDriver* d, Nanos rtt, Nanos duration) {
  for (const Nanos end = d->now + duration; d->now < end;) {
    d->Ack(rtt, static_cast<double>(d->window()) / CongestionDriver::kMtu, rtt);
  }
}

constexpr CongestionParams kWideWindow{.window_bytes = 2'000'000,
                                       .mtu_bytes = CongestionDriver::kMtu,
                                       .line_rate_bytes_per_s = 1'250'000'000};
constexpr Nanos kRtt = FromMillis(1);

bool AnySignal(const CongestionSignals& s) { return s.loss || s.ecn || s.delay; }

// One event of each kind at the fullest window: those named in the row slow down, the others do
// not.
TEST(CongestionControllers, ReactToTheirSignalsAndToNoOther) {
  for (const CongestionControllerRow& row : CongestionControllers()) {
    const auto expect = [&row](const char* what, bool reacts, auto event) {
      CongestionDriver d(row.name, kWideWindow);
      Calm(&d, kRtt, FromMillis(20'000));
      const double before = Throughput(d, kRtt);
      EXPECT_GT(before, 0.5e9) << row.name << " " << d.controller().Snapshot();
      event(&d);
      const double after = Throughput(d, kRtt);
      const std::string state =
          std::string(row.name) + " " + what + " " + d.controller().Snapshot();
      if (reacts) {
        EXPECT_LT(after, 0.999 * before) << state;
      } else {
        EXPECT_DOUBLE_EQ(after, before) << state;
      }
    };
    expect("loss", row.signals.loss, [](CongestionDriver* d) { d->Lose(kRtt); });
    expect("mark", row.signals.ecn, [](CongestionDriver* d) { d->Mark(kRtt); });
    expect("timeout", AnySignal(row.signals), [](CongestionDriver* d) { d->Timeout(kRtt); });
    // Throughput by the base RTT: a longer round trip alone makes every window slower.
    const auto delay = [](CongestionDriver* d) {
      for (int i = 0; i < 50; ++i) {
        d->AckWith(FromMillis(50), 1, FromMillis(50), 0);
      }
    };
    CongestionDriver d(row.name, kWideWindow);
    Calm(&d, kRtt, FromMillis(20'000));
    const int64_t window = d.window(), rate = d.rate();
    delay(&d);
    const std::string state = std::string(row.name) + " delay " + d.controller().Snapshot();
    if (row.signals.delay) {
      EXPECT_TRUE(d.window() < window / 2 || d.rate() < rate / 2) << state;
    } else {
      EXPECT_GE(d.window(), window) << state;  // a rate may need more
    }
  }
}

// However bad it was, calm brings nine tenths of the throughput back.
TEST(CongestionControllers, RecoverWhenTheCauseIsGone) {
  for (const CongestionControllerRow& row : CongestionControllers()) {
    CongestionDriver d(row.name, kWideWindow);
    Calm(&d, kRtt, FromMillis(20'000));
    const double before = Throughput(d, kRtt);
    for (int i = 0; i < 100; ++i) {
      d.Lose(3 * kRtt);
      d.Mark(3 * kRtt);
      d.AckWith(3 * kRtt, 1, FromMillis(30), 0);
    }
    for (int i = 0; i < 20; ++i) d.Timeout(FromMillis(500));
    if (AnySignal(row.signals)) {
      EXPECT_LT(Throughput(d, kRtt), 0.1 * before) << row.name << " " << d.controller().Snapshot();
    }
    EXPECT_GT(Throughput(d, kRtt), 0) << row.name;
    Calm(&d, kRtt, FromMillis(30'000));
    EXPECT_GE(Throughput(d, kRtt), 0.9 * before) << row.name << " " << d.controller().Snapshot();
  }
}

// A sender that heard nothing but timeouts from the start still sends, and grows with the first
// ACKs.
TEST(CongestionControllers, SilenceFromTheStartIsNoEnd) {
  for (const CongestionControllerRow& row : CongestionControllers()) {
    CongestionDriver d(row.name, kWideWindow);
    for (int i = 0; i < 50; ++i) d.Timeout(FromMillis(100));
    EXPECT_GE(d.window(), CongestionDriver::kMtu) << row.name;
    d.AckWith(kRtt, 1, kRtt, 0);
    Calm(&d, kRtt, FromMillis(5'000));
    EXPECT_GT(Throughput(d, kRtt), 0.2e9) << row.name << " " << d.controller().Snapshot();
  }
}

// Whatever happens, one packet may go, no pace is slower than a packet in 20 ms or the line, and
// all is bounded.
TEST(CongestionControllers, StayWithinBounds) {
  constexpr CongestionParams kParams[] = {
      {.window_bytes = 100'000, .mtu_bytes = 1200},
      {.window_bytes = 1, .mtu_bytes = 1200},  // smaller than a packet
      {.window_bytes = 1 << 30, .mtu_bytes = 65'507, .line_rate_bytes_per_s = 200'000'000'000},
      {.window_bytes = 1 << 30, .mtu_bytes = 1200, .line_rate_bytes_per_s = INT64_MAX, .hops = 10},
      {.window_bytes = 4 << 20,
       .mtu_bytes = 9000,
       .line_rate_bytes_per_s = 1,
       .base_rtt = Nanos(1)},
  };
  for (const CongestionControllerRow& row : CongestionControllers()) {
    for (const CongestionParams& params : kParams) {
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        testing::Random random(seed);
        auto made = MakeCongestionController(row.name, params);
        ASSERT_TRUE(made.ok());
        CongestionController& controller = *made.value();
        Nanos now{0};
        int64_t inflight = 0;
        for (int i = 0; i < 2000; ++i) {
          now += Nanos(random.Magnitude(1, random.Chance(0.01) ? 10'000'000'000 : 10'000'000));
          const auto bytes = static_cast<int64_t>(random.Magnitude(
              1, static_cast<uint64_t>(random.Chance(0.1) ? params.window_bytes : 1200)));
          const Nanos rtt(random.Chance(0.1) ? 0 : random.Magnitude(1, 1'000'000'000'000));
          const PathId path{static_cast<uint16_t>(random.Below(4))};
          switch (random.Below(seed % 3 == 0 ? 5 : 8)) {  // some schedules mostly of ACKs
            case 0:
              controller.OnSent(now, bytes);
              inflight += bytes;
              break;
            case 1:
              controller.OnLoss({now, path, bytes, inflight,
                                 random.Chance(0.5)
                                     ? kNever
                                     : Nanos(random.Below(static_cast<uint64_t>(now.count())))});
              break;
            case 2:
              controller.OnTimeout(now);
              break;
            case 3:
              controller.OnEcn({now, path, rtt, bytes, inflight});
              break;
            default:
              inflight -= std::min(inflight, bytes);
              controller.OnAck({now, path, rtt, bytes, inflight, random.Chance(0.1)});
          }
          const std::string where = std::string(row.name) + " seed " + std::to_string(seed) +
                                    " step " + std::to_string(i) + " " + controller.Snapshot();
          ASSERT_GE(controller.window_bytes(), std::min(params.mtu_bytes, params.window_bytes))
              << where;
          ASSERT_LE(controller.window_bytes(), params.window_bytes) << where;
          const int64_t rate = controller.pacing_rate_bytes_per_s();
          if (rate != 0) {
            const int64_t line =
                params.line_rate_bytes_per_s > 0 ? params.line_rate_bytes_per_s : rate;
            ASSERT_GE(rate, std::min(line, params.mtu_bytes * 50 - 1)) << where;
          }
          ASSERT_LE(rate, 200'000'000'000) << where;
          ASSERT_EQ(where.find("nan"), std::string::npos) << where;
        }
      }
    }
  }
}

TEST(CongestionControllers, AreAllInTheDocument) {
  const char* root = std::getenv("UCCL_SOURCE_ROOT");
  const std::string path =
      std::string(root != nullptr ? root : ".") + "/docs/congestion_control.md";
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::string table;
  for (const CongestionControllerRow& row : CongestionControllers()) {
    std::string signals;
    for (const auto& [name, on] :
         {std::pair("loss", row.signals.loss), std::pair("ECN", row.signals.ecn),
          std::pair("delay", row.signals.delay)}) {
      if (on) signals += (signals.empty() ? "" : ", ") + std::string(name);
    }
    table += std::string("| `") + row.name + "` | " + row.summary + " | " +
             (signals.empty() ? "-" : signals) + " | " + row.source + " | " + row.good_for + " |\n";
  }
  EXPECT_NE(text.find(table), std::string::npos) << path << " should contain\n" << table;
}

}  // namespace
}  // namespace uccl::core
