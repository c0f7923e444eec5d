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

constexpr uint32_t kNoTime = 0x5a5a5a5a;
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
  bool repeat = false;  // kernels are started once, and what was recorded of them is repeated
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

// The kernels of a use, as a graph keeps them: with the parameters of when they were started.
struct Recorder {
  cuda::Launcher* launcher;
  std::vector<std::function<Status()>> kernels;
  template <class Params>
  Status Run(const Params& params) {
    kernels.push_back([this, params] { return launcher->Run(params); });
    return Status::Ok();
  }
  // `before` is what a test does before each of them, by their number.
  Status Play(const std::function<void(int at)>& before) const {
    for (size_t at = 0; at < kernels.size(); ++at) {
      if (before) before(static_cast<int>(at));
      if (Status s = kernels[at](); !s.ok()) return s;
    }
    return Status::Ok();
  }
};

// One rank: the buffers of its program, the same in all uses, and the uses that it goes through.
class RankSide {
 public:
  RankSide(const Job& job, uint32_t rank, cuda::Launcher* launcher, const fifo::FifoView& fifo,
           proxy::Region* region)
      : job_(job),
        rank_(rank),
        launcher_(launcher),
        region_(region),
        there_{launcher, {}},
        back_{launcher, {}} {
    SlotExchange::Memory memory;
    memory.region = region->memory().data();
    memory.counters = region->counters().data();
    memory.failed = region->failed_word();
    for (const SlotLayout& layout : {DispatchLayout(job), CombineLayout(job)}) {
      EXPECT_TRUE(layout.Check().ok()) << layout.Check().ToString();
      const SlotExchange::Results results = SlotExchange::ResultsOf(layout);
      memory.work = Keep(results.work_bytes).get();
      memory.shared = KeepPinned(results.shared_bytes).get();
      exchanges_.push_back(std::make_unique<SlotExchange>(layout, rank, fifo, memory));
    }
    const uint64_t wide = job.channels * cuda::ElementBytes(job.element);
    const uint64_t entries = uint64_t{job.tokens} * job.width, words = 1 + 2 * job.width;
    const uint64_t rows = dispatch().layout().slots, capacity = rows + kMoreRows;
    const uint64_t answers = rows * (job.per_choice ? job.width : 1);
    x_ = Keep(job.tokens * wide), tags_ = Keep(job.tokens * words * 4);
    peers_ = Keep(entries * 4), slots_ = Keep(entries * 4), given_ = Keep(entries * 4);
    out_ = Keep(capacity * wide), out_tags_ = Keep(capacity * words * 4);
    y_ = Keep(answers * wide), to_ = Keep(answers * 4), at_ = Keep(answers * 4);
    table_ = Keep(entries * 4), sums_ = Keep(job.tokens * wide);
    waited_ = Keep(2 * job.ranks * 4);
  }

  SlotExchange& dispatch() { return *exchanges_[0]; }
  SlotExchange& combine() { return *exchanges_[1]; }

  // False at the first difference, of which the test is told.
  bool Use(int use, const std::function<void(int at)>& before = nullptr) {
    const Choices choices = RandomChoices(job_, use);
    const uint64_t wide = job_.channels * cuda::ElementBytes(job_.element);
    const uint64_t capacity = dispatch().layout().slots + kMoreRows;
    const uint64_t words = 1 + 2 * job_.width;
    const std::vector<int32_t>& mine = choices[rank_];
    for (uint32_t t = 0; t < job_.tokens; ++t) {
      const std::vector<std::byte> row = Bytes(job_, Token(job_, use, rank_, t));
      std::memcpy(x_.get() + t * wide, row.data(), wide);
      int32_t* tag = As<int32_t>(tags_) + t * words;
      tag[0] = static_cast<int32_t>(t);
      for (uint32_t j = 0; j < job_.width; ++j) {
        tag[1 + j] = mine[t * job_.width + j];
        tag[1 + job_.width + j] = std::bit_cast<int32_t>(Weight(rank_, t, j));
      }
    }
    std::ranges::copy(mine, As<int32_t>(given_));
    cuda::RouteParams route;
    route.choices = As<int32_t>(given_), route.tokens = job_.tokens, route.width = job_.width;
    route.ranks = job_.ranks, route.experts_per_rank = job_.local;
    route.peers = As<int32_t>(peers_), route.slots = As<int32_t>(slots_);
    if (!Fine(launcher_->Run(route))) return false;
    std::memset(out_.get(), 0x5a, capacity * wide);  // also what nobody sends must be written
    // No time that is measured: the largest may be, on a loaded machine.
    std::fill_n(As<uint32_t>(waited_), 2 * job_.ranks, kNoTime);
    if (!Go(&there_, dispatch(), MakeDispatch(), before)) return false;
    if (!IsWhatWasSent(use, choices, out_.get(), As<int32_t>(out_tags_))) return false;
    if (job_.only_dispatch) return true;
    Answers(mine);
    if (!Go(&back_, combine(), MakeCombine(), nullptr)) return false;
    const uint32_t* const waited = As<uint32_t>(waited_);
    const bool timed = std::count(waited, waited + 2 * job_.ranks, kNoTime) == 0;
    EXPECT_TRUE(timed) << "use " << use << ": no times of waits at rank " << rank_;
    return timed && IsTheSum(use, mine, sums_.get());
  }

  Dispatch MakeDispatch() const {
    const uint64_t wide = job_.channels * cuda::ElementBytes(job_.element);
    Dispatch d;
    d.x = x_.get(), d.x_stride = wide, d.tokens = job_.tokens, d.channels = job_.channels;
    d.element = job_.element, d.cast = job_.cast;
    d.tags = As<int32_t>(tags_), d.tag_words = 1 + 2 * job_.width;
    d.peers = As<int32_t>(peers_), d.slots = As<int32_t>(slots_), d.width = job_.width;
    d.out = out_.get(), d.out_stride = wide, d.out_rows = exchanges_[0]->layout().slots + kMoreRows;
    d.out_tags = As<int32_t>(out_tags_), d.waited = As<uint32_t>(waited_);
    return d;
  }
  Combine MakeCombine() const {
    const uint64_t wide = job_.channels * cuda::ElementBytes(job_.element);
    Combine c;
    c.y = y_.get(), c.y_stride = wide, c.y_rows = c.entries = combine_rows();
    c.channels = job_.channels, c.element = c.out_element = job_.element;
    c.peers = As<int32_t>(to_), c.slots = As<int32_t>(at_);
    c.table = As<int32_t>(table_), c.tokens = job_.tokens, c.width = job_.width;
    c.out = sums_.get(), c.out_stride = wide, c.waited = As<uint32_t>(waited_) + job_.ranks;
    return c;
  }

 private:
  uint64_t combine_rows() const { return exchanges_[1]->layout().staging_rows; }
  // Starts what `call` asks for, or repeats it.
  template <class Call>
  bool Go(Recorder* kernels, const SlotExchange& exchange, const Call& call,
          const std::function<void(int at)>& before) {
    if (!job_.repeat) kernels->kernels.clear();
    if (kernels->kernels.empty() && !Fine(Start(*kernels, exchange, call))) return false;
    return Fine(kernels->Play(before)) && Fine(region_->status()) && Fine(exchange.Trouble());
  }
  // The experts: what goes back, and where to.
  void Answers(const std::vector<int32_t>& mine) {
    const uint64_t element = cuda::ElementBytes(job_.element), wide = job_.channels * element;
    const uint64_t words = 1 + 2 * job_.width;
    const uint64_t each = job_.per_choice ? job_.width : 1;
    uint64_t row = 0;
    for (uint32_t source = 0; source < job_.ranks; ++source) {
      for (uint32_t n = 0; n < dispatch().counts()[source]; ++n, ++row) {
        const int32_t* tag = As<int32_t>(out_tags_) + row * words;
        const auto t = static_cast<uint32_t>(tag[0]);
        bool first = true;
        for (uint32_t j = 0; j < job_.width; ++j) {
          const bool here = IsHere(tag[1 + j]);
          if (!here && !job_.per_choice) continue;
          const uint64_t i = job_.per_choice ? row * job_.width + j : row;
          if (!job_.per_choice && !first) continue;
          first = false;
          As<int32_t>(to_)[i] = here ? static_cast<int32_t>(source) : -1;
          As<int32_t>(at_)[i] = static_cast<int32_t>(t * job_.width + j);
          for (uint64_t c = 0; c < job_.channels; ++c) {
            const float value = Load(job_.element, out_.get() + row * wide + c * element);
            const float answer = Answer(job_, tag + 1, source, t, value, [&](uint32_t k) {
              return job_.per_choice ? k == j && here : IsHere(tag[1 + k]);
            });
            Store(job_.element, answer, y_.get() + i * wide + c * element);
          }
        }
      }
    }
    for (uint64_t i = row * each; i < combine_rows(); ++i) As<int32_t>(to_)[i] = -1;
    for (uint64_t i = 0; i < mine.size(); ++i) {
      const bool comes = job_.per_choice ? mine[i] >= 0 : As<int32_t>(peers_)[i] >= 0;
      As<int32_t>(table_)[i] = comes ? static_cast<int32_t>(i) : -1;
    }
  }
  bool IsHere(int32_t e) const { return e >= 0 && static_cast<uint32_t>(e) / job_.local == rank_; }
  static bool Fine(const Status& status) {
    EXPECT_TRUE(status.ok()) << status.ToString();
    return status.ok();
  }
  std::shared_ptr<std::byte> Keep(uint64_t bytes) {
    return kept_.emplace_back(launcher_->Allocate(bytes));
  }
  std::shared_ptr<std::byte> KeepPinned(uint64_t bytes) {
    return kept_.emplace_back(launcher_->AllocatePinned(bytes));
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
  Recorder there_, back_;
  std::shared_ptr<std::byte> x_, tags_, peers_, slots_, given_, out_, out_tags_;
  std::shared_ptr<std::byte> y_, to_, at_, table_, sums_, waited_;
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
    job.repeat = seed % 2 == 0, job.uses = 5;
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

// Rank 2 stops with its rows of a use in the slots until the others have sent all of the next and
// can go no further. Would they, its rows would be replaced under it (as with one buffer).
// Dispatches alone: a combine between them would hold the others back before.
TEST(LowLatency, ASlowRankFindsItsSlotsUntouched) {
  Job job;
  job.ranks = 3, job.tokens = 6, job.width = 3, job.uses = 6, job.only_dispatch = true;
  for (const bool repeat : {false, true}) {
    job.repeat = repeat;
    proxy::ChaosNetwork network(job.ranks, RegionBytes(job), Counters(job), 64, 11);
    std::vector<std::atomic<int>> waits(2);  // how often each of the others has begun to wait
    std::atomic<int> was_slow{0};
    // The kernels of a dispatch: begin, pack, tags, send, wait, unpack, then others.
    RunAll(job, &network, 1, [&](uint32_t rank, int use, int at) {
      if (rank < 2 && at == 4) ++waits[rank];
      // Once with either buffer.
      if (rank < 2 || (use != 0 && use != 3) || at != 5) return;
      while (waits[0] < use + 2 || waits[1] < use + 2 || network.landed() < network.taken()) {
        std::this_thread::yield();
      }
      ++was_slow;
    });
    EXPECT_EQ(was_slow, 2);
  }
}

TEST(LowLatency, OverProxiesAndEngines_EqualTheOracle) {
  for (const proxy::Way& way : proxy::Ways()) {
    SCOPED_TRACE(way.name);
    for (const bool per_choice : {false, true}) {
      Job job;
      job.ranks = 4, job.tokens = 16, job.width = 4, job.uses = UnderSanitizers(3, 6);
      job.channels = per_choice ? 1000 : 20'001;  // rows beyond what one command counts
      job.per_choice = per_choice, job.seed = 17, job.repeat = per_choice;
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
  Recorder kernels{cuda::Launchers()[0], {}};
  EXPECT_FALSE(side.dispatch().Awaits(1));
  std::thread watchdog([&] {  // when it has sent; rank 1 never does
    while (side.dispatch().Awaits(0) || !side.dispatch().Awaits(1)) std::this_thread::yield();
    network.region(0).Fail(Status::Error(StatusCode::kPeerTimeout, "rank 1 is silent"));
  });
  EXPECT_TRUE(Start(kernels, side.dispatch(), Dispatch{}).ok());
  EXPECT_TRUE(kernels.Play(nullptr).ok());
  watchdog.join();
  const Status status = side.dispatch().Trouble();
  EXPECT_EQ(status.code, StatusCode::kAborted) << status.ToString();
  EXPECT_TRUE(side.dispatch().Awaits(1));
  EXPECT_FALSE(side.dispatch().Awaits(0));
}

TEST(LowLatency, WhatKernelsFindWrongIsTold) {
  Job job;
  job.ranks = 1;
  proxy::ChaosNetwork network(job.ranks, RegionBytes(job), Counters(job), 64, 1);
  RankSide side(job, 0, cuda::Launchers()[0], network.fifo(0), &network.region(0));
  EXPECT_TRUE(side.dispatch().Trouble().ok());
  Recorder kernels{cuda::Launchers()[0], {}};
  Dispatch d = side.MakeDispatch();
  const std::vector<int32_t> peers(job.tokens * job.width, 1);
  d.peers = peers.data();
  EXPECT_TRUE(Start(kernels, side.dispatch(), d).ok());
  EXPECT_TRUE(kernels.Play(nullptr).ok());
  const Status status = side.dispatch().Trouble();
  EXPECT_NE(status.detail.find("entry 0 of the rows to send"), std::string::npos)
      << status.ToString();
}

TEST(LowLatency, RefusesWhatHasNoRoom) {
  Job job;
  proxy::ChaosNetwork network(job.ranks, RegionBytes(job), Counters(job), 64, 1);
  RankSide side(job, 0, cuda::Launchers()[0], network.fifo(0), &network.region(0));
  Recorder kernels{cuda::Launchers()[0], {}};
  Dispatch d;
  d.tokens = job.tokens + 1;
  EXPECT_NE(Start(kernels, side.dispatch(), d).detail.find("9 rows"), std::string::npos);
  EXPECT_TRUE(kernels.kernels.empty());
}

}  // namespace
}  // namespace uccl::moe
