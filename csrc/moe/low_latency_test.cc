// Dispatch and combine in low-latency mode between ranks on threads, bit for bit against a naive
// oracle that knows the choices of all: over proxies and engines, and over a network that reorders,
// repeats and delays.
#include "csrc/moe/low_latency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/bfloat16.h"
#include "csrc/base/testing/sanitized.h"
#include "csrc/cuda/route.h"
#include "csrc/cuda/testing/launcher.h"
#include "csrc/moe/fp8.h"
#include "csrc/proxy/testing/chaos_network.h"
#include "csrc/proxy/testing/fleet.h"

namespace uccl::moe {
namespace {

using cuda::Element;
using cuda::RowCast;

constexpr uint64_t kMoreRows = 3;  // of a result, than can come

struct Job {
  uint32_t ranks = 2, tokens = 8, width = 2, local = 2;
  uint64_t channels = 10;
  Element element = Element::kF32;
  RowCast cast = RowCast::kNone;
  bool per_choice = false;  // a row back for each choice, else for each copy
  int uses = 4;
  uint64_t seed = 1;
  std::vector<uint32_t> masked;  // ranks that nobody chooses and that choose nobody
  bool hot = false;              // expert 0 takes everything
  bool only_dispatch = false;
  uint32_t experts() const { return ranks * local; }
};

using Choices = std::vector<std::vector<int32_t>>;  // by rank: [tokens, width]

// Distinct experts, some -1; ranks with no tokens, with few and with all.
Choices RandomChoices(const Job& job, int use) {
  std::mt19937_64 random(job.seed * 1000 + static_cast<uint64_t>(use));
  const auto masked = [&](uint32_t rank) {
    return std::find(job.masked.begin(), job.masked.end(), rank) != job.masked.end();
  };
  Choices all(job.ranks);
  for (uint32_t rank = 0; rank < job.ranks; ++rank) {
    all[rank].assign(job.tokens * job.width, -1);
    const uint64_t kind = random() % 4;
    const uint32_t tokens = masked(rank) || kind == 0 ? 0
                            : kind == 1 ? static_cast<uint32_t>(random() % (job.tokens + 1))
                                        : job.tokens;
    for (uint32_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> experts(job.experts());
      std::iota(experts.begin(), experts.end(), 0);
      std::shuffle(experts.begin(), experts.end(), random);
      if (job.hot) std::swap(experts[0], *std::find(experts.begin(), experts.end(), 0));
      for (uint32_t j = 0; j < std::min(job.width, job.experts()); ++j) {
        if (job.hot && j > 0) break;
        const int32_t e = experts[j];
        if (!masked(static_cast<uint32_t>(e) / job.local) && (job.hot || random() % 5 != 0)) {
          all[rank][t * job.width + j] = e;
        }
      }
    }
  }
  return all;
}

float Rounded(Element element, float f) {
  return element == Element::kBF16 ? FromBFloat16(ToBFloat16(f)) : f;
}
void Store(Element element, float f, std::byte* to) {
  if (element == Element::kBF16) {
    const uint16_t bits = ToBFloat16(f);
    std::memcpy(to, &bits, sizeof(bits));
  } else {
    std::memcpy(to, &f, sizeof(f));
  }
}
float Load(Element element, const std::byte* from) {
  if (element == Element::kBF16) {
    uint16_t bits;
    std::memcpy(&bits, from, sizeof(bits));
    return FromBFloat16(bits);
  }
  float f;
  std::memcpy(&f, from, sizeof(f));
  return f;
}

// Token `t` of a rank; different everywhere.
std::vector<float> Token(const Job& job, int use, uint32_t rank, uint32_t t) {
  std::mt19937_64 random(((job.seed * 31 + static_cast<uint64_t>(use)) * 64 + rank) * 4096 + t);
  std::vector<float> values(job.channels);
  for (float& v : values) {
    v = Rounded(job.element, static_cast<float>(static_cast<int64_t>(random() % 20001) - 10000) /
                                 static_cast<float>(1 + random() % 77));
  }
  return values;
}
float Weight(uint32_t rank, uint32_t t, uint32_t j) {
  return 1.0f / static_cast<float>(1 + rank * 7 + t * 3 + j);
}
std::vector<std::byte> Bytes(const Job& job, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * cuda::ElementBytes(job.element));
  for (size_t i = 0; i < values.size(); ++i) {
    Store(job.element, values[i], bytes.data() + i * cuda::ElementBytes(job.element));
  }
  return bytes;
}
// What a token is on arrival.
std::vector<float> Arrived(const Job& job, const std::vector<float>& values) {
  if (job.cast == RowCast::kNone) return values;
  const RowType type = job.element == Element::kBF16 ? RowType::kBF16 : RowType::kF32;
  const std::vector<std::byte> wide = Bytes(job, values);
  std::vector<std::byte> narrow(Fp8WireBytes(job.channels)), back(wide.size());
  EncodeFp8(type, wide.data(), 1, job.channels, job.cast == RowCast::kToFp8PowerOf2, narrow.data());
  DecodeFp8(narrow.data(), 1, job.channels, type, back.data());
  std::vector<float> result(job.channels);
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = Load(job.element, back.data() + i * cuda::ElementBytes(job.element));
  }
  return result;
}
float Expert(uint32_t e, float value) { return value * static_cast<float>(e + 1) - 0.25f; }

// What comes back for one copy: choices j with wanted(j), added in order and rounded once.
template <class Wanted>
float Answer(const Job& job, const int32_t* choices, uint32_t rank, uint32_t t, float value,
             const Wanted& wanted) {
  float sum = 0;
  for (uint32_t j = 0; j < job.width; ++j) {
    if (wanted(j)) {
      sum += Weight(rank, t, j) * Expert(static_cast<uint32_t>(choices[j]), value);
    }
  }
  return Rounded(job.element, sum);
}

SlotLayout DispatchLayout(const Job& job) {
  SlotLayout l;
  l.ranks = job.ranks, l.staging_rows = l.most = job.tokens;
  l.slots = uint64_t{job.ranks} * job.tokens;
  Dispatch d;
  d.channels = job.channels, d.element = job.element, d.cast = job.cast;
  d.tag_words = 1 + 2 * job.width;
  l.row_bytes = d.row_bytes();
  return l;
}
SlotLayout CombineLayout(const Job& job) {
  const SlotLayout before = DispatchLayout(job);
  SlotLayout l;
  l.ranks = job.ranks;
  l.staging_rows = uint64_t{job.ranks} * job.tokens * (job.per_choice ? job.width : 1);
  l.slots = l.most = uint64_t{job.tokens} * job.width;
  l.row_bytes = job.channels * cuda::ElementBytes(job.element);
  l.first_byte = before.bytes();
  l.first_counter = before.counters(), l.first_channel = SlotLayout::kChannels;
  return l;
}

template <class T>
T* As(const std::shared_ptr<std::byte>& memory) {
  return reinterpret_cast<T*>(memory.get());
}

// What a test does before a kernel of a rank: `at` counts those of a use from 0 on.
struct Runner {
  cuda::Launcher* launcher;
  std::function<void(int at)> before;
  int at = 0;
  template <class Params>
  Status Run(const Params& params) {
    if (before) before(at);
    ++at;
    return launcher->Run(params);
  }
};

// One rank: the buffers of its program, and the uses that it goes through.
class RankSide {
 public:
  RankSide(const Job& job, uint32_t rank, cuda::Launcher* launcher, const fifo::FifoView& fifo,
           proxy::Region* region)
      : job_(job), rank_(rank), launcher_(launcher), region_(region) {
    SlotExchange::Memory memory;
    memory.region = region->memory().data();
    memory.counters = region->counters().data();
    memory.failed = region->failed_word();
    for (const SlotLayout& layout : {DispatchLayout(job), CombineLayout(job)}) {
      EXPECT_TRUE(layout.Check().ok()) << layout.Check().ToString();
      memory.work = Keep(SlotExchange::ResultsOf(layout).bytes).get();
      exchanges_.push_back(std::make_unique<SlotExchange>(layout, rank, fifo, memory));
    }
  }

  SlotExchange& dispatch() { return *exchanges_[0]; }
  SlotExchange& combine() { return *exchanges_[1]; }

  // False at the first difference, of which the test is told.
  bool Use(int use, const std::function<void(int at)>& before = nullptr) {
    const Choices choices = RandomChoices(job_, use);
    const uint64_t element = cuda::ElementBytes(job_.element), wide = job_.channels * element;
    const uint64_t entries = uint64_t{job_.tokens} * job_.width;
    const uint64_t rows = dispatch().layout().slots, words = 1 + 2 * job_.width;
    const std::vector<int32_t>& mine = choices[rank_];

    const auto x = Keep(job_.tokens * wide), tags = Keep(job_.tokens * words * 4);
    for (uint32_t t = 0; t < job_.tokens; ++t) {
      const std::vector<std::byte> row = Bytes(job_, Token(job_, use, rank_, t));
      std::memcpy(x.get() + t * wide, row.data(), wide);
      int32_t* tag = As<int32_t>(tags) + t * words;
      tag[0] = static_cast<int32_t>(t);
      for (uint32_t j = 0; j < job_.width; ++j) {
        tag[1 + j] = mine[t * job_.width + j];
        tag[1 + job_.width + j] = std::bit_cast<int32_t>(Weight(rank_, t, j));
      }
    }
    const auto peers = Keep(entries * 4), slots = Keep(entries * 4), given = Keep(entries * 4);
    std::ranges::copy(mine, As<int32_t>(given));
    cuda::RouteParams route;
    route.choices = As<int32_t>(given), route.tokens = job_.tokens, route.width = job_.width;
    route.ranks = job_.ranks, route.experts_per_rank = job_.local;
    route.peers = As<int32_t>(peers), route.slots = As<int32_t>(slots);
    if (!Fine(launcher_->Run(route))) return false;

    Dispatch d;
    d.x = x.get(), d.x_stride = wide, d.tokens = job_.tokens, d.channels = job_.channels;
    d.element = job_.element, d.cast = job_.cast;
    d.tags = As<int32_t>(tags), d.tag_words = words;
    d.peers = As<int32_t>(peers), d.slots = As<int32_t>(slots), d.width = job_.width;
    const uint64_t capacity = rows + kMoreRows;
    const auto out = Keep(capacity * wide), out_tags = Keep(capacity * words * 4);
    std::memset(out.get(), 0x5a, capacity * wide);  // also what nobody sends must be written
    d.out = out.get(), d.out_stride = wide, d.out_rows = capacity;
    d.out_tags = As<int32_t>(out_tags);
    Runner runner{launcher_, before};
    if (!Fine(Start(runner, &dispatch(), d)) || !Fine(dispatch().End(region_->status()))) {
      return false;
    }
    if (!IsWhatWasSent(use, choices, out.get(), As<int32_t>(out_tags))) return false;

    if (job_.only_dispatch) {
      kept_.resize(2);  // of the exchanges
      return true;
    }

    // The experts.
    const uint64_t each = job_.per_choice ? job_.width : 1;
    const auto y = Keep(rows * each * wide);
    const auto to = Keep(rows * each * 4), at = Keep(rows * each * 4), table = Keep(entries * 4);
    uint64_t row = 0;
    for (uint32_t source = 0; source < job_.ranks; ++source) {
      for (uint32_t n = 0; n < dispatch().counts()[source]; ++n, ++row) {
        const int32_t* tag = As<int32_t>(out_tags) + row * words;
        const auto t = static_cast<uint32_t>(tag[0]);
        bool first = true;
        for (uint32_t j = 0; j < job_.width; ++j) {
          const bool here = IsHere(tag[1 + j]);
          if (!here && !job_.per_choice) continue;
          const uint64_t i = job_.per_choice ? row * job_.width + j : row;
          if (!job_.per_choice && !first) continue;
          first = false;
          As<int32_t>(to)[i] = here ? static_cast<int32_t>(source) : -1;
          As<int32_t>(at)[i] = static_cast<int32_t>(t * job_.width + j);
          for (uint64_t c = 0; c < job_.channels; ++c) {
            const float value = Load(job_.element, out.get() + row * wide + c * element);
            const float answer = Answer(job_, tag + 1, source, t, value, [&](uint32_t k) {
              return job_.per_choice ? k == j && here : IsHere(tag[1 + k]);
            });
            Store(job_.element, answer, y.get() + i * wide + c * element);
          }
        }
      }
    }
    for (uint64_t i = row * each; i < rows * each; ++i) As<int32_t>(to)[i] = -1;
    for (uint64_t i = 0; i < entries; ++i) {
      const bool comes = job_.per_choice ? mine[i] >= 0 : As<int32_t>(peers)[i] >= 0;
      As<int32_t>(table)[i] = comes ? static_cast<int32_t>(i) : -1;
    }
    Combine c;
    c.y = y.get(), c.y_stride = wide, c.y_rows = c.entries = rows * each;
    c.channels = job_.channels, c.element = c.out_element = job_.element;
    c.peers = As<int32_t>(to), c.slots = As<int32_t>(at);
    c.table = As<int32_t>(table), c.tokens = job_.tokens, c.width = job_.width;
    const auto sums = Keep(job_.tokens * wide);
    c.out = sums.get(), c.out_stride = wide;
    Runner back{launcher_, nullptr};
    if (!Fine(Start(back, &combine(), c)) || !Fine(combine().End(region_->status()))) return false;
    const bool right = IsTheSum(use, mine, sums.get());
    kept_.resize(2);  // of the exchanges
    return right;
  }

 private:
  bool IsHere(int32_t e) const { return e >= 0 && static_cast<uint32_t>(e) / job_.local == rank_; }
  static bool Fine(const Status& status) {
    EXPECT_TRUE(status.ok()) << status.ToString();
    return status.ok();
  }
  std::shared_ptr<std::byte> Keep(uint64_t bytes) {
    return kept_.emplace_back(launcher_->Allocate(bytes));
  }

  // The oracle of dispatch.
  bool IsWhatWasSent(int use, const Choices& all, const std::byte* out, const int32_t* tags) {
    const uint64_t wide = job_.channels * cuda::ElementBytes(job_.element);
    const uint64_t rows = dispatch().layout().slots, words = 1 + 2 * job_.width;
    uint64_t row = 0;
    for (uint32_t source = 0; source < job_.ranks; ++source) {
      uint32_t count = 0;
      for (uint32_t t = 0; t < job_.tokens; ++t) {
        const int32_t* choices = all[source].data() + t * job_.width;
        if (std::none_of(choices, choices + job_.width, [&](int32_t e) { return IsHere(e); })) {
          continue;
        }
        const auto want = Bytes(job_, Arrived(job_, Token(job_, use, source, t)));
        const bool same = std::memcmp(out + row * wide, want.data(), wide) == 0 &&
                          tags[row * words] == static_cast<int32_t>(t) &&
                          std::equal(choices, choices + job_.width, tags + row * words + 1);
        EXPECT_TRUE(same) << "use " << use << ": token " << t << " of rank " << source
                          << " at rank " << rank_;
        if (!same) return false;
        ++row, ++count;
      }
      EXPECT_EQ(dispatch().counts()[source], count) << "use " << use << " rank " << source;
      if (dispatch().counts()[source] != count) return false;
    }
    const bool zeros = std::all_of(out + row * wide, out + (rows + kMoreRows) * wide,
                                   [](std::byte b) { return b == std::byte{0}; });
    EXPECT_TRUE(zeros) << "behind the last row of use " << use;
    return zeros;
  }
  // The oracle of combine: for each choice, or the first one on each rank, in order.
  bool IsTheSum(int use, const std::vector<int32_t>& mine, const std::byte* sums) {
    const uint64_t wide = job_.channels * cuda::ElementBytes(job_.element);
    for (uint32_t t = 0; t < job_.tokens; ++t) {
      const std::vector<float> x = Arrived(job_, Token(job_, use, rank_, t));
      const int32_t* choices = mine.data() + t * job_.width;
      const auto owner = [&](uint32_t j) {
        return choices[j] < 0 ? -1 : choices[j] / static_cast<int32_t>(job_.local);
      };
      std::vector<float> want(job_.channels, 0.0f);
      for (uint32_t j = 0; j < job_.width; ++j) {
        bool counts = choices[j] >= 0;
        for (uint32_t k = 0; k < j && !job_.per_choice; ++k) counts &= owner(k) != owner(j);
        for (uint64_t c = 0; c < job_.channels && counts; ++c) {
          want[c] += Answer(job_, choices, rank_, t, x[c], [&](uint32_t k) {
            return job_.per_choice ? k == j : owner(k) == owner(j);
          });
        }
      }
      const auto bytes = Bytes(job_, want);
      const bool same = std::memcmp(sums + t * wide, bytes.data(), wide) == 0;
      EXPECT_TRUE(same) << "use " << use << ": sum of token " << t << " of rank " << rank_;
      if (!same) return false;
    }
    return true;
  }

  const Job job_;
  const uint32_t rank_;
  cuda::Launcher* const launcher_;
  proxy::Region* const region_;
  std::vector<std::shared_ptr<std::byte>> kept_;
  std::vector<std::unique_ptr<SlotExchange>> exchanges_;
};

size_t RegionBytes(const Job& job) {
  return DispatchLayout(job).bytes() + CombineLayout(job).bytes();
}
size_t Counters(const Job& job) {
  return DispatchLayout(job).counters() + CombineLayout(job).counters();
}

using Before = std::function<void(uint32_t rank, int use, int at)>;

// Whoever differs fails all regions, so that nobody waits for it.
template <class Network>
void RunAll(const Job& job, Network* network, size_t launchers, const Before& before = nullptr) {
  std::vector<std::thread> threads;
  std::atomic<bool> wrong{false};
  for (uint32_t rank = 0; rank < job.ranks; ++rank) {
    threads.emplace_back([&, rank, fifo = network->fifo(rank)] {
      cuda::Launcher* const launcher = cuda::Launchers()[rank % launchers];
      RankSide side(job, rank, launcher, fifo, &network->region(rank));
      for (int use = 0; use < job.uses && !wrong.load(); ++use) {
        const auto mine = [&](int at) { before(rank, use, at); };
        if (before ? side.Use(use, mine) : side.Use(use)) continue;
        wrong.store(true);
        for (uint32_t r = 0; r < job.ranks; ++r) {
          network->region(r).Fail(Status::Error(StatusCode::kAborted, "another rank differs"));
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

// Ranks of engines and proxies, as RunAll sees them.
struct OverProxies {
  OverProxies(const Job& job, int processes, const Config& config)
      : fleet(processes, static_cast<int>(job.ranks) / processes, RegionBytes(job), config,
              Counters(job)) {
    fleet.RegisterAll();
  }
  proxy::Region& region(size_t rank) { return fleet.region(rank); }
  fifo::FifoView fifo(size_t rank) { return fleet.Open(rank, 32); }
  proxy::Fleet fleet;
};

TEST(LowLatency, ReorderedRepeatedAndDelayed_EqualTheOracle) {
  uint64_t overtook = 0, repeated = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Job job;
    job.seed = seed;
    job.ranks = 1 + static_cast<uint32_t>(random() % 5), job.tokens = random() % 9;
    job.width = 1 + random() % 4, job.local = 1 + random() % 3;
    job.channels = 1 + random() % 40;
    job.element = random() % 2 == 0 ? Element::kF32 : Element::kBF16;
    job.per_choice = random() % 2 == 0;
    proxy::ChaosNetwork network(job.ranks, RegionBytes(job), Counters(job), 1 + random() % 9, seed);
    RunAll(job, &network, 1);
    overtook += network.overtook(), repeated += network.repeated();
  }
  EXPECT_GT(overtook, 100u) << "nothing was reordered";
  EXPECT_GT(repeated, 100u) << "nothing came twice";
}

TEST(LowLatency, EightBitRowsAndLanesEqualTheOracle) {
  for (const RowCast cast : {RowCast::kToFp8, RowCast::kToFp8PowerOf2}) {
    Job job;
    job.ranks = 3, job.tokens = 5, job.width = 3, job.uses = 3;
    job.channels = 300, job.cast = cast;
    job.element = cast == RowCast::kToFp8 ? Element::kBF16 : Element::kF32;
    proxy::ChaosNetwork network(job.ranks, RegionBytes(job), Counters(job), 8, 3);
    RunAll(job, &network, 3);  // each rank on groups of another shape
  }
}

TEST(LowLatency, OneExpertTakesAllAndMaskedRanksTakePart) {
  Job job;
  job.ranks = 4, job.tokens = 7, job.hot = true;
  proxy::ChaosNetwork hot(job.ranks, RegionBytes(job), Counters(job), 8, 5);
  RunAll(job, &hot, 1);
  job.hot = false, job.masked = {1, 3};
  proxy::ChaosNetwork masked(job.ranks, RegionBytes(job), Counters(job), 8, 6);
  RunAll(job, &masked, 1);
  job.masked = {0, 1, 2, 3}, job.tokens = 0;
  proxy::ChaosNetwork nothing(job.ranks, RegionBytes(job), Counters(job), 8, 7);
  RunAll(job, &nothing, 1);
}

// Rank 2 stops with its rows of use 0 in the slots until the others have sent all of use 1 and can
// go no further. Would they, its rows would be replaced under it (as with one buffer). Dispatches
// alone: a combine between them would hold the others back before.
TEST(LowLatency, ASlowRankFindsItsSlotsUntouched) {
  Job job;
  job.ranks = 3, job.tokens = 6, job.width = 3, job.uses = 4, job.only_dispatch = true;
  proxy::ChaosNetwork network(job.ranks, RegionBytes(job), Counters(job), 64, 11);
  std::vector<std::atomic<int>> waits(2);  // how often each of the others has begun to wait
  std::atomic<bool> was_slow{false};
  // The kernels of a dispatch: pack, tags, send, wait, unpack, then others.
  RunAll(job, &network, 1, [&](uint32_t rank, int use, int at) {
    if (rank < 2 && at == 3) ++waits[rank];
    if (rank < 2 || use != 0 || at != 4) return;
    while (waits[0] < 2 || waits[1] < 2 || network.landed() < network.taken()) {
      std::this_thread::yield();
    }
    was_slow = true;
  });
  EXPECT_TRUE(was_slow);
}

TEST(LowLatency, OverProxiesAndEngines_EqualTheOracle) {
  for (const proxy::Way& way : proxy::Ways()) {
    SCOPED_TRACE(way.name);
    for (const bool per_choice : {false, true}) {
      Job job;
      job.ranks = 4, job.tokens = 16, job.width = 4, job.uses = UnderSanitizers(3, 6);
      job.channels = per_choice ? 1000 : 20'001;  // rows beyond what one command counts
      job.per_choice = per_choice, job.seed = 17;
      OverProxies network(job, way.processes, way.config);
      RunAll(job, &network, 1);
      for (uint32_t r = 0; r < job.ranks; ++r) EXPECT_TRUE(network.region(r).status().ok());
    }
  }
}

TEST(LowLatency, AFailedRegionEndsTheWait) {
  Job job;
  proxy::ChaosNetwork network(job.ranks, RegionBytes(job), Counters(job), 64, 1);
  RankSide side(job, 0, cuda::Launchers()[0], network.fifo(0), &network.region(0));
  Runner runner{cuda::Launchers()[0], nullptr};
  std::thread watchdog([&] {  // when it has sent; rank 1 never does
    while (network.landed() == 0) std::this_thread::yield();
    network.region(0).Fail(Status::Error(StatusCode::kPeerTimeout, "rank 1 is silent"));
  });
  EXPECT_TRUE(Start(runner, &side.dispatch(), Dispatch{}).ok());
  watchdog.join();
  const Status status = side.dispatch().End(network.region(0).status());
  EXPECT_EQ(status.code, StatusCode::kPeerTimeout) << status.ToString();
}

TEST(LowLatency, RefusesWhatHasNoRoomAndASecondUseAtOnce) {
  Job job;
  proxy::ChaosNetwork network(job.ranks, RegionBytes(job), Counters(job), 64, 1);
  RankSide side(job, 0, cuda::Launchers()[0], network.fifo(0), &network.region(0));
  Runner runner{cuda::Launchers()[0], nullptr};
  Dispatch d;
  d.tokens = job.tokens + 1;
  EXPECT_NE(Start(runner, &side.dispatch(), d).detail.find("9 rows"), std::string::npos);
  EXPECT_TRUE(side.dispatch().Begin().ok());
  EXPECT_NE(side.dispatch().Begin().status().detail.find("under way"), std::string::npos);
}

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
