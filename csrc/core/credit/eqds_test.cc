// Tests of csrc/core/credit/eqds.h against grants worked out by hand. Virtual time.
#include "csrc/core/credit/eqds.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <vector>

#include "csrc/core/credit/registry.h"

namespace uccl::core {
namespace {

// 1 byte per ns before utilization; a quantum of one datagram.
constexpr int64_t kQuantum = 1000;
std::unique_ptr<ReceiverScheduler> Make() { return MakeEqds({1'000'000'000, kQuantum}); }

CreditFlow Flow(uint64_t owner, int64_t wanted = 0, int64_t initial = 0,
                int64_t limit = 1'000'000) {
  CreditFlow flow;
  flow.owner = owner;
  flow.wanted = wanted;
  flow.granted = flow.initial_bytes = initial;
  flow.limit_bytes = limit;
  flow.datagram_bytes = kQuantum;
  return flow;
}

// Whom the scheduler grants in turn, when it is asked as soon as each credit is due.
std::vector<uint64_t> Grants(ReceiverScheduler* s, size_t count) {
  std::vector<uint64_t> owners;
  while (owners.size() < count && s->NextGrant() != kNever) {
    const CreditFlow* flow = s->Grant(s->NextGrant());
    owners.push_back(flow->owner);
  }
  return owners;
}

TEST(Eqds, Nobody_NeverDue) {
  auto s = Make();
  EXPECT_EQ(s->NextGrant(), kNever);
  EXPECT_EQ(s->Grant(FromMillis(1)), nullptr);
  CreditFlow flow = Flow(1);
  s->Add(&flow);
  EXPECT_EQ(s->NextGrant(), kNever);
  s->Remove(&flow);
  s->Remove(&flow);
}

TEST(Eqds, Active_RoundRobinUntilAllIsGranted) {
  auto s = Make();
  CreditFlow a = Flow(1, 2500), b = Flow(2, 1000), c = Flow(3, 2000);
  for (CreditFlow* f : {&a, &b, &c}) s->Add(f);
  EXPECT_EQ(Grants(s.get(), 10), (std::vector<uint64_t>{1, 2, 3, 1, 3, 1}));
  EXPECT_EQ(a.granted, 2500);  // the last one only what is left
  EXPECT_EQ(b.granted, 1000);
  EXPECT_EQ(c.granted, 2000);
  EXPECT_TRUE(a.credit_due && b.credit_due && c.credit_due);
}

// Times between `count` credits that are taken as soon as they are due.
std::vector<int64_t> Gaps(ReceiverScheduler* s, size_t count) {
  std::vector<int64_t> gaps;
  Nanos last = s->NextGrant();
  for (size_t i = 0; i < count; ++i) {
    EXPECT_NE(s->Grant(last), nullptr);
    gaps.push_back((s->NextGrant() - last).count());
    last = s->NextGrant();
  }
  return gaps;
}

// A credit of 1000 bytes lasts 1066 / 0.98 ns, and four times that while a queue drains.
TEST(Eqds, Pipe_MoreUnderWaySlowsCreditsUntilItArrives) {
  auto s = MakeEqds({1'000'000'000, kQuantum, 3000});
  CreditFlow a = Flow(1, 100'000);
  s->Add(&a);
  EXPECT_EQ(Gaps(s.get(), 6), (std::vector<int64_t>{1087, 1087, 1087, 1087, 4351, 4351}));
  a.arrived = 2000;
  s->Update(&a);
  EXPECT_EQ(Gaps(s.get(), 1).front(), 4351) << "4000 are still under way";
  a.arrived = 3000;
  a.settled = 3000;  // lost is as good as arrived
  s->Update(&a);
  EXPECT_EQ(Gaps(s.get(), 1).front(), 1087);
}

// What was granted ahead and nobody wants is not under way; what a flow leaves behind neither.
TEST(Eqds, Pipe_CountsWhatIsWantedByThoseThatAreThere) {
  auto s = MakeEqds({1'000'000'000, kQuantum, 3000});
  CreditFlow idle = Flow(1, 0, 50'000), gone = Flow(2, 50'000), a = Flow(3, 100'000);
  gone.granted = 50'000;
  s->Add(&idle);
  s->Add(&gone);
  s->Add(&a);
  EXPECT_EQ(Gaps(s.get(), 1).front(), 4351);
  s->Remove(&gone);
  s->Remove(&gone);
  EXPECT_EQ(Gaps(s.get(), 1).front(), 1087);
}

// A datagram of 1000 bytes takes 1066 on the wire, and the credits claim 98 % of it: 1087.8 ns.
TEST(Eqds, Pace_IsThatOfTheLink) {
  auto s = Make();
  CreditFlow a = Flow(1, 1'000'000);
  s->Add(&a);
  Nanos now = FromMillis(5);
  ASSERT_NE(s->Grant(now), nullptr);
  // Time that was not used is lost, but for four credits' worth.
  int burst = 1;
  while (s->Grant(now) != nullptr) ++burst;
  EXPECT_EQ(burst, 4);
  const Nanos begin = s->NextGrant();
  EXPECT_GT(begin, now);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(s->Grant(s->NextGrant() - Nanos(1)), nullptr);
    ASSERT_NE(s->Grant(s->NextGrant()), nullptr);
  }
  EXPECT_NEAR(static_cast<double>((s->NextGrant() - begin).count()), 100 * 1066 / 0.98, 101);
}

TEST(Eqds, Retransmit_GoesFirst) {
  auto s = Make();
  CreditFlow a = Flow(1, 10'000), b = Flow(2, 10'000);
  s->Add(&a);
  s->Add(&b);
  EXPECT_EQ(Grants(s.get(), 4), (std::vector<uint64_t>{1, 2, 1, 2}));
  b.settled += 2000;  // lost, and wanted again
  b.wanted += 2000;
  b.again += 2000;
  s->Update(&b);
  EXPECT_EQ(Grants(s.get(), 5), (std::vector<uint64_t>{2, 2, 1, 2, 1}));
}

TEST(Eqds, Idle_GetsWhatNobodyNeeds) {
  auto s = Make();
  CreditFlow idle = Flow(1, 0, 3000), active = Flow(2, 3000);
  idle.wanted = 1500;  // sent out of what it had unasked
  s->Add(&idle);
  s->Add(&active);
  EXPECT_EQ(Grants(s.get(), 10), (std::vector<uint64_t>{2, 2, 2, 1, 1}));
  EXPECT_EQ(idle.granted, 4500);
  EXPECT_EQ(s->NextGrant(), kNever);  // an idle network stays idle
}

TEST(Eqds, Outstanding_StopsASenderThatStopped) {
  auto s = Make();
  CreditFlow a = Flow(1, 100'000, 0, 3000), b = Flow(2, 4000, 0, 100'000);
  s->Add(&a);
  s->Add(&b);
  EXPECT_EQ(Grants(s.get(), 20), (std::vector<uint64_t>{1, 2, 1, 2, 1, 2, 2}));
  EXPECT_EQ(a.granted, 3000);
  EXPECT_EQ(s->NextGrant(), kNever);
  a.arrived = 1000;
  s->Update(&a);
  EXPECT_EQ(Grants(s.get(), 20), (std::vector<uint64_t>{1}));
  a.settled = 2000;
  s->Update(&a);
  EXPECT_EQ(Grants(s.get(), 20), (std::vector<uint64_t>{1, 1}));
}

TEST(Eqds, Remove_FromTheMiddle) {
  auto s = Make();
  std::array<CreditFlow, 4> flows = {Flow(0, 5000), Flow(1, 5000), Flow(2, 5000), Flow(3, 5000)};
  for (CreditFlow& f : flows) s->Add(&f);
  s->Remove(&flows[1]);
  EXPECT_EQ(Grants(s.get(), 4), (std::vector<uint64_t>{0, 2, 3, 0}));
  s->Remove(&flows[2]);
  s->Remove(&flows[3]);
  s->Remove(&flows[0]);
  EXPECT_EQ(s->NextGrant(), kNever);
}

// 1000 flows with demands of all sizes get all they want and no more, and share evenly meanwhile.
TEST(Eqds, ManyFlows_ShareEvenly) {
  auto s = Make();
  std::vector<CreditFlow> flows;
  for (uint64_t i = 0; i < 1000; ++i) flows.push_back(Flow(i, static_cast<int64_t>(i) * 37, 500));
  for (CreditFlow& f : flows) s->Add(&f);
  std::map<uint64_t, int> turns;
  while (s->NextGrant() != kNever) {
    const CreditFlow* flow = s->Grant(s->NextGrant());
    const int mine = ++turns[flow->owner];
    // Nobody who still wants more is behind.
    if (flow->granted >= flow->wanted) continue;
    for (const CreditFlow& f : flows) {
      if (f.granted >= f.wanted) continue;
      ASSERT_GE(turns[f.owner] + 1, mine);
    }
  }
  for (const CreditFlow& f : flows) EXPECT_EQ(f.granted, f.wanted + 500);
}

TEST(ReceiverSchedulers, Make_NamesWhatIsWrong) {
  EXPECT_EQ(MakeReceiverScheduler("none", {}).value(), nullptr);
  EXPECT_NE(MakeReceiverScheduler("eqds", {1, 1}).value(), nullptr);
  const Status unknown = MakeReceiverScheduler("barter", {1, 1}).status();
  EXPECT_EQ(unknown.code, StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.detail.find("barter"), std::string::npos);
  EXPECT_NE(unknown.detail.find("none, eqds"), std::string::npos);
  const Status rate = MakeReceiverScheduler("eqds", {0, 1}).status();
  EXPECT_EQ(rate.code, StatusCode::kInvalidArgument);
  EXPECT_NE(rate.detail.find("line_rate_mbps"), std::string::npos);
  EXPECT_EQ(MakeReceiverScheduler("eqds", {1, 0}).status().code, StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace uccl::core
