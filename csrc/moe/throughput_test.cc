// Rows of known numbers between ranks on threads, against a naive oracle that sees all of them: in
// one level and in two, over a network that reorders, repeats and delays, and over proxies and
// engines.
#include "csrc/moe/throughput.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/testing/sanitized.h"
#include "csrc/executor/pipes.h"
#include "csrc/proxy/testing/chaos_network.h"
#include "csrc/proxy/testing/fleet.h"

namespace uccl::moe {
namespace {

constexpr uint64_t kStaging = 65536;  // the least: pieces are small, and laps many
constexpr std::byte kOld{0x5a};

struct Job {
  uint32_t ranks = 2, tokens = 8, width = 1;  // places of a row
  uint64_t row_bytes = 10;
  std::vector<int32_t> hosts;  // of each rank; empty: one level
  bool in_order = false;       // rows lie where they come, and leave as they lie
  int uses = UnderSanitizers(2, 3);
  uint64_t seed = 1;
};

std::vector<std::byte> Row(const Job& job, int use, uint32_t rank, uint32_t token) {
  std::mt19937_64 random(((job.seed * 31 + static_cast<uint64_t>(use)) * 64 + rank) * 4096 + token);
  std::vector<std::byte> row(job.row_bytes);
  for (std::byte& b : row) b = static_cast<std::byte>(random());
  return row;
}

// What all ranks do in one use, as each of them could know it.
struct Routing {
  // [source][token][target]: whether the token goes there. Ranks with no tokens, some and all.
  std::vector<std::vector<std::vector<bool>>> goes;
  std::vector<std::vector<int32_t>> places;  // of each target: [entries, width]
  uint64_t rows_there = 0;                   // of a result

  Routing(const Job& job, int use) {
    std::mt19937_64 random(job.seed * 1000 + static_cast<uint64_t>(use));
    goes.assign(job.ranks, {});
    for (auto& tokens : goes) {
      const uint64_t kind = random() % 4;
      for (uint32_t t = 0; t < job.tokens; ++t) {
        auto& to = tokens.emplace_back(job.ranks, false);
        if (kind == 0) continue;
        for (uint32_t d = 0; d < job.ranks; ++d) to[d] = kind == 1 || random() % 3 == 0;
      }
    }
    rows_there = uint64_t{job.ranks} * job.tokens * job.width + 3;
    for (uint32_t d = 0; d < job.ranks; ++d) {
      std::vector<int32_t> free(rows_there);
      std::iota(free.begin(), free.end(), 0);
      if (!job.in_order) std::shuffle(free.begin(), free.end(), random);
      auto& mine = places.emplace_back();
      for (uint64_t n = 0; n < Total(d) * job.width; ++n) {
        const bool none = !job.in_order && random() % 4 == 0;
        mine.push_back(none ? -1 : free[n]);
      }
    }
  }
  uint64_t Count(uint32_t source, uint32_t target) const {
    return static_cast<uint64_t>(
        std::ranges::count_if(goes[source], [&](const auto& to) { return to[target]; }));
  }
  uint64_t Total(uint32_t target) const {
    uint64_t total = 0;
    for (uint32_t s = 0; s < goes.size(); ++s) total += Count(s, target);
    return total;
  }
};

// The buffers and tables of one rank in one use, made token by token.
struct Side {
  std::vector<std::byte> x, out, relayed;
  std::vector<int32_t> index, send_offsets, send_counts, receive_counts, vacant, places;
  std::vector<int32_t> hosts, gateways, hop_index, hop_offsets, hop_counts, relay_counts;
  std::vector<uint64_t> waited;
  RowExchange exchange;

  Side(const Job& job, const Routing& r, int use, uint32_t me)
      : send_counts(job.ranks),
        receive_counts(job.ranks),
        places(r.places[me]),
        hosts(job.hosts),
        hop_counts(job.ranks),
        relay_counts(job.ranks),
        waited(job.ranks) {
    for (uint32_t t = 0; t < job.tokens; ++t) {
      const auto row = Row(job, use, me, t);
      x.insert(x.end(), row.begin(), row.end());
    }
    out.assign(r.rows_there * job.row_bytes, kOld);
    exchange.row_bytes = job.row_bytes;
    exchange.out = {x.data(), job.tokens, nullptr, 0, {}, {}};
    if (hosts.empty()) {
      for (uint32_t d = 0; d < job.ranks; ++d) {
        send_offsets.push_back(static_cast<int32_t>(index.size()));
        for (uint32_t t = 0; t < job.tokens; ++t) {
          if (!r.goes[me][t][d]) continue;
          index.push_back(static_cast<int32_t>(t));
          ++send_counts[d];
        }
      }
      if (job.in_order) {  // a buffer that is packed already
        std::vector<std::byte> packed;
        for (const int32_t t : index) {
          const std::byte* row = x.data() + static_cast<uint64_t>(t) * job.row_bytes;
          packed.insert(packed.end(), row, row + job.row_bytes);
        }
        x = std::move(packed);
        exchange.out.rows = x.data(), exchange.out.num_rows = index.size();
      }
    } else {
      Relay(job, r, me);
    }
    for (uint32_t s = 0; s < job.ranks; ++s)
      receive_counts[s] = static_cast<int32_t>(r.Count(s, me));
    std::vector<bool> taken(r.rows_there);
    for (const int32_t p : places) {
      if (p >= 0) taken[static_cast<size_t>(p)] = true;
    }
    for (size_t n = 0; n < taken.size(); ++n) {
      if (!taken[n]) vacant.push_back(static_cast<int32_t>(n));
      if (n % 3 == 0) vacant.push_back(-1);
    }
    exchange.out.index = job.in_order && hosts.empty() ? nullptr : index.data();
    exchange.out.entries = index.size();
    exchange.out.offsets = send_offsets, exchange.out.counts = send_counts;
    exchange.in = {out.data(),
                   r.rows_there,
                   job.in_order ? nullptr : places.data(),
                   places.size() / job.width,
                   job.in_order ? 1 : job.width,
                   receive_counts};
    exchange.vacant = vacant.data(), exchange.num_vacant = vacant.size();
  }
  Side(const Side&) = delete;

  void Relay(const Job& job, const Routing& r, uint32_t me) {
    const uint32_t num_hosts = 1 + static_cast<uint32_t>(*std::ranges::max_element(hosts));
    for (uint32_t s = 0; s < job.ranks; ++s) {
      for (uint32_t h = 0; h < num_hosts; ++h) {
        std::vector<int32_t> own;
        for (uint32_t d = 0; d < job.ranks; ++d) {
          if (hosts[d] == static_cast<int32_t>(h)) own.push_back(static_cast<int32_t>(d));
        }
        gateways.push_back(own[s * own.size() / job.ranks]);
      }
    }
    const auto gateway = [&](uint32_t s, int32_t host) {
      return static_cast<uint32_t>(gateways[s * num_hosts + static_cast<uint32_t>(host)]);
    };
    const auto goes_to_host = [&](uint32_t s, uint32_t t, int32_t host) {
      bool goes = false;
      for (uint32_t d = 0; d < job.ranks; ++d) goes |= r.goes[s][t][d] && hosts[d] == host;
      return goes;
    };
    // By host, which is not the order of their gateways.
    hop_offsets.resize(job.ranks);
    for (int32_t host = 0; host < static_cast<int32_t>(num_hosts); ++host) {
      const uint32_t to = gateway(me, host);
      hop_offsets[to] = static_cast<int32_t>(hop_index.size());
      for (uint32_t t = 0; t < job.tokens; ++t) {
        if (!goes_to_host(me, t, host)) continue;
        hop_index.push_back(static_cast<int32_t>(t));
        ++hop_counts[to];
      }
    }
    std::vector<std::pair<uint32_t, uint32_t>> tokens;  // that are relayed here
    for (uint32_t s = 0; s < job.ranks; ++s) {
      for (uint32_t t = 0; t < job.tokens && gateway(s, hosts[me]) == me; ++t) {
        if (!goes_to_host(s, t, hosts[me])) continue;
        tokens.push_back({s, t});
        ++relay_counts[s];
      }
    }
    for (uint32_t d = 0; d < job.ranks; ++d) {
      send_offsets.push_back(static_cast<int32_t>(index.size()));
      for (size_t n = 0; n < tokens.size() && hosts[d] == hosts[me]; ++n) {
        if (!r.goes[tokens[n].first][tokens[n].second][d]) continue;
        index.push_back(static_cast<int32_t>(n));
        ++send_counts[d];
      }
    }
    relayed.assign((tokens.size() + 1) * job.row_bytes, kOld);
    RelayRows relay;
    relay.hosts = hosts, relay.gateways = gateways, relay.num_hosts = num_hosts;
    relay.out = {x.data(), job.tokens, hop_index.data(), hop_index.size(), hop_offsets, hop_counts};
    relay.in = {relayed.data(), tokens.size(), nullptr, tokens.size(), 1, relay_counts};
    exchange.relay = relay;
    exchange.out.rows = relayed.data(), exchange.out.num_rows = tokens.size();
  }

  bool IsRight(const Job& job, const Routing& r, int use, uint32_t me) const {
    std::vector<std::byte> want(out.size(), std::byte{0});
    uint64_t entry = 0;
    for (uint32_t s = 0; s < job.ranks; ++s) {
      for (uint32_t t = 0; t < job.tokens; ++t) {
        if (!r.goes[s][t][me]) continue;
        const auto row = Row(job, use, s, t);
        for (uint32_t j = 0; j < job.width; ++j) {
          const int32_t place = places[entry * job.width + j];
          if (place < 0) continue;
          std::ranges::copy(row, want.begin() + place * static_cast<int64_t>(job.row_bytes));
        }
        ++entry;
      }
    }
    const bool told = std::ranges::all_of(waited, [](uint64_t ns) { return ns > 0; });
    EXPECT_TRUE(told) << "use " << use << ": rank " << me << " was not told of all times";
    EXPECT_TRUE(out == want) << "use " << use << " of rank " << me << ", seed " << job.seed;
    return told && out == want;
  }
};

using AllPipes = std::vector<executor::Pipes*>;

// Whoever differs fails all, so that nobody waits for it.
void RunAll(const Job& job, const AllPipes& pipes) {
  std::vector<std::thread> threads;
  std::atomic<bool> wrong{false};
  for (uint32_t rank = 0; rank < job.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int use = 0; use < job.uses && !wrong.load(); ++use) {
        const Routing routing(job, use);
        Side side(job, routing, use, rank);
        const Status status = ThroughputProgram(side.exchange, side.waited.data())
                                  .Run(pipes[rank], static_cast<uint64_t>(use));
        EXPECT_TRUE(status.ok()) << status.ToString();
        if (status.ok() && side.IsRight(job, routing, use, rank)) continue;
        wrong.store(true);
        for (executor::Pipes* each : pipes)
          each->Fail(Status::Error(StatusCode::kAborted, "another rank differs"));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (executor::Pipes* each : pipes) {
    for (uint32_t peer = 0; peer < job.ranks; ++peer) EXPECT_FALSE(each->Awaits(peer));
  }
}

struct Chaos {
  Chaos(uint32_t ranks, size_t capacity, uint64_t seed)
      : layout(executor::MakePipeLayout(ranks, kStaging).value()),
        network(ranks, layout.region_bytes(), layout.counters(), capacity, seed) {
    for (uint32_t r = 0; r < ranks; ++r) {
      owned.push_back(
          std::make_unique<executor::Pipes>(layout, network.shared_region(r), network.fifo(r)));
      pipes.push_back(owned.back().get());
    }
  }
  const executor::PipeLayout layout;
  proxy::ChaosNetwork network;
  std::vector<std::unique_ptr<executor::Pipes>> owned;
  AllPipes pipes;
};

TEST(Throughput, ReorderedRepeatedAndDelayed_EqualTheOracle) {
  uint64_t overtook = 0, repeated = 0;
  for (uint64_t seed = 1; seed <= UnderSanitizers(12u, 24u); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Job job;
    job.seed = seed;
    job.ranks = 1 + static_cast<uint32_t>(random() % 6), job.tokens = random() % 9;
    job.width = 1 + random() % 3;
    // From one byte to more than a piece.
    job.row_bytes = 1 + random() % (seed % 3 == 0 ? 10'000 : 300);
    if (seed % 2 == 0) {
      const uint32_t hosts = 1 + static_cast<uint32_t>(random() % job.ranks);
      for (uint32_t r = 0; r < job.ranks; ++r)  // each has a rank
        job.hosts.push_back(static_cast<int32_t>(r < hosts ? r : random() % hosts));
    } else if (seed % 3 == 1) {
      job.width = 1, job.in_order = true;
    }
    Chaos all(job.ranks, 1 + random() % 9, seed);
    RunAll(job, all.pipes);
    overtook += all.network.overtook(), repeated += all.network.repeated();
  }
  EXPECT_GT(overtook, 100u) << "nothing was reordered";
  EXPECT_GT(repeated, 100u) << "nothing came twice";
}

TEST(Throughput, OverProxiesAndEngines_EqualTheOracle) {
  for (const proxy::Way& way : proxy::Ways()) {
    SCOPED_TRACE(way.name);
    for (const bool two_levels : {false, true}) {
      Job job;
      job.ranks = 4, job.tokens = 40, job.width = 2, job.row_bytes = 7'001, job.seed = 17;
      if (two_levels) job.hosts = {0, 0, 1, 1};
      proxy::Fleet fleet(way.processes, 4 / way.processes, 64, way.config);
      std::vector<std::unique_ptr<executor::Pipes>> owned;
      AllPipes pipes;
      for (uint32_t r = 0; r < job.ranks; ++r) {
        auto opened =
            executor::Pipes::Open(&fleet.proxy(r), 7, fleet.Options(r).processes, r, kStaging);
        ASSERT_TRUE(opened.ok()) << opened.status().ToString();
        owned.push_back(std::move(opened.value()));
        pipes.push_back(owned.back().get());
      }
      RunAll(job, pipes);
      for (executor::Pipes* each : pipes) EXPECT_TRUE(each->Drain(std::chrono::seconds(60)).ok());
    }
  }
}

// Rank 0 holds back its second row until the first one is at rank 2, to which rank 1 forwards.
TEST(Throughput, RowsAreForwardedAsTheyCome) {
  constexpr uint64_t kRow = 40'000;
  Chaos all(3, 64, 3);
  const std::vector<int32_t> hosts = {0, 1, 1}, gateways = {0, 1, 0, 1, 0, 2};
  const std::vector<int32_t> none(3), hop_in = {2, 0, 0}, on = {0, 0, 2};
  std::vector<std::byte> relayed(2 * kRow), got(2 * kRow);
  RowExchange gateway;
  gateway.row_bytes = kRow;
  gateway.relay = RelayRows{};
  gateway.relay->hosts = hosts, gateway.relay->gateways = gateways, gateway.relay->num_hosts = 2;
  gateway.relay->out.offsets = gateway.relay->out.counts = none;
  gateway.relay->in = {relayed.data(), 2, nullptr, 2, 1, hop_in};
  gateway.out = {relayed.data(), 2, nullptr, 2, none, on};
  gateway.in.counts = none;
  std::vector<uint64_t> waited(3);
  std::thread forwards([&] {
    EXPECT_EQ(ThroughputProgram(gateway, waited.data()).Run(all.pipes[1], 0).code,
              StatusCode::kAborted);
  });
  std::atomic<bool> is_there{false};
  std::thread takes([&] {
    executor::Incoming in = executor::Receive(1, {0, 1, 0}, got);
    in.unpack = [&, unpack = in.unpack](uint64_t offset, Bytes from) {
      if (offset + from.size() >= kRow - all.layout.piece_bytes) is_there = true;
      return unpack(offset, from);
    };
    EXPECT_TRUE(all.pipes[2]->Exchange({}, {&in, 1}).ok());
  });
  std::vector<std::byte> rows(2 * kRow);
  for (size_t n = 0; n < rows.size(); ++n) rows[n] = static_cast<std::byte>(n / kRow + n % 251);
  executor::Outgoing out = executor::Send(1, {0, 0, 0}, rows);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  out.pack = [&, pack = out.pack](uint64_t offset, MutableBytes to) {
    // The piece with the end of the first row has the beginning of the second.
    while (offset > kRow && !is_there && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    return pack(offset, to);
  };
  EXPECT_TRUE(all.pipes[0]->Exchange({&out, 1}, {}).ok());
  EXPECT_LT(std::chrono::steady_clock::now(), deadline) << "the gateway waited for all rows";
  takes.join();
  EXPECT_EQ(got, rows);
  // The other gateway of its host never tells that it has nothing.
  all.pipes[1]->Fail(Status::Error(StatusCode::kAborted, "the test is over"));
  forwards.join();
}

TEST(Throughput, RanksThatDisagree_GetAnErrorAndNoData) {
  Chaos all(2, 64, 1);
  Job job;
  const Routing routing(job, 0);
  Side here(job, routing, 0, 0), there(job, routing, 0, 1);
  std::vector<int32_t> more = there.receive_counts;
  ++more[0];
  there.exchange.in.counts = more;
  there.exchange.in.places = nullptr, there.exchange.in.entries = more[0] + more[1];
  std::thread other(
      [&] { (void)ThroughputProgram(here.exchange, here.waited.data()).Run(all.pipes[0], 0); });
  const Status status = ThroughputProgram(there.exchange, there.waited.data()).Run(all.pipes[1], 0);
  EXPECT_EQ(status.code, StatusCode::kProtocol);
  EXPECT_NE(status.detail.find("rank 0 sends"), std::string::npos) << status.detail;
  other.join();
}

TEST(Throughput, RefusesTablesThatDoNotFit) {
  Chaos all(3, 64, 1);
  Job job;
  job.ranks = 3, job.tokens = 2;
  Routing routing(job, 0);
  for (auto& tokens : routing.goes) {
    for (auto& to : tokens) to = {true, true, true};
  }
  for (auto& places : routing.places) places = {0, 1, 2, 3, 4, 5};
  // Would it not be refused, a failed region ended the wait.
  for (executor::Pipes* each : all.pipes)
    each->Fail(Status::Error(StatusCode::kAborted, "not refused"));
  const auto says = [&](auto change, const std::string& what) {
    Side side(job, routing, 0, 0);
    change(&side);
    const Status status = ThroughputProgram(side.exchange, side.waited.data()).Run(all.pipes[0], 0);
    EXPECT_NE(status.detail.find(what), std::string::npos) << what << ": " << status.detail;
  };
  says([](Side*) {}, "not refused");
  says([](Side* s) { s->exchange.row_bytes = 0; }, "without bytes");
  says([](Side* s) { s->send_counts[1] = -1; }, "-1 rows to send");
  says([](Side* s) { s->send_offsets[1] = -1; }, "2 rows to send from -1 on");
  says([](Side* s) { s->send_offsets[1] = 5; }, "2 rows to send from 5 on, but 6 entries");
  says([](Side* s) { s->receive_counts[1] = 3; }, "2 rows to receive from 5 on, but 6 entries");
  says([](Side* s) { s->exchange.in.counts = {}; }, "0 counts of rows to receive for 3 ranks");
  says([](Side* s) { s->receive_counts[0] = 1; }, "2 rows from rank 0 to itself, which expects 1");
  says([](Side* s) { s->index[1] = 2; }, "a row to keep lies outside");
  says([](Side* s) { s->places[1] = 21; }, "a row to keep lies outside");

  job.hosts = {0, 0, 1};  // rank 0 is the gateway of ranks 0 and 1
  says([](Side*) {}, "not refused");
  says([](Side* s) { s->hosts[1] = 2; }, "hosts and gateways of another group");
  says([](Side* s) { s->gateways[3] = -1; }, "hosts and gateways of another group");
  says([](Side* s) { s->exchange.out.rows = s->x.data(); }, "hosts and gateways of another group");
  says([](Side* s) { s->gateways = {1, 2, 0, 2, 1, 2}; }, "out of the order");
  says([](Side* s) { s->relay_counts = {1, 2, 1}; }, "neither of which is the other's gateway");
  says([](Side* s) { s->hop_counts = {1, 1, 2}; }, "neither of which is the other's gateway");
  says([](Side* s) { s->hop_counts[0] = 1; }, "other rows from itself");
  says([](Side* s) { s->send_counts[0] = 3; }, "3 rows from rank 0 to itself, which expects 4");
  says([](Side* s) { s->send_counts = {4, 3, 1}, s->send_offsets[2] = 7; }, "is on another host");
}

TEST(Throughput, ARowThatIsNotThereIsNotSent) {
  Chaos all(2, 64, 1);
  Job job;
  const Routing routing(job, 0);
  Side side(job, routing, 0, 0);
  std::vector<int32_t> index = {1, 2, static_cast<int32_t>(job.tokens)}, to_one = {0, 3}, none(2);
  side.exchange.out.index = index.data(), side.exchange.out.entries = 3;
  side.exchange.out.offsets = none, side.exchange.out.counts = to_one;
  side.exchange.in.counts = none;
  const Status status = ThroughputProgram(side.exchange, side.waited.data()).Run(all.pipes[0], 0);
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_NE(status.detail.find("a row to send lies outside"), std::string::npos) << status.detail;
  EXPECT_EQ(all.network.taken(), 0u);
}

TEST(Throughput, AFailedRegionEndsTheWait) {
  Chaos all(2, 64, 1);
  Job job;
  const Routing routing(job, 0);
  Side side(job, routing, 0, 0);
  std::thread watchdog([&] {
    while (!all.pipes[0]->Awaits(1)) std::this_thread::yield();
    all.pipes[0]->Fail(Status::Error(StatusCode::kPeerTimeout, "rank 1 is silent"));
  });
  EXPECT_EQ(ThroughputProgram(side.exchange, side.waited.data()).Run(all.pipes[0], 0).code,
            StatusCode::kPeerTimeout);
  watchdog.join();
}

}  // namespace
}  // namespace uccl::moe
