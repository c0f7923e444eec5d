// Power of two choices: of two paths drawn at random, the one with the lower smoothed RTT
// (UCCL-Tran, arXiv 2504.17307, section 4.2; Mitzenmacher, "The Power of Two Choices in Randomized
// Load Balancing", 2001). Two draws avoid both the herd that runs to the best path and the slow
// path that random spraying cannot see.
//
// Drawn with replacement: the slowest of n paths is drawn twice once in n^2 packets, which keeps
// its RTT known. Deviation: round trips that differ by less than an eighth are equal (that is their
// noise), and then the path with fewer bytes in flight is taken, so that equal paths carry equal
// load. A path that was not heard of for kStale is given one packet to find out, then compared by
// bytes in flight until it answers.
#include "csrc/core/path/power_of_two.h"

#include "csrc/base/hash.h"

namespace uccl::core {
namespace {

constexpr Nanos kStale = FromMillis(100);
constexpr int kNoise = 8;

class PowerOfTwo final : public PathSelector {
 public:
  explicit PowerOfTwo(uint64_t seed) : state_(seed) {}

 private:
  std::optional<size_t> Pick(const PathRequest& request, const PathFilter& filter) override {
    const uint64_t draw = Mix64(state_ += kGamma);
    const size_t count = request.paths.size();
    const auto a = filter.From((draw & 0xffff'ffff) % count);
    if (!a) return std::nullopt;
    const auto b = filter.From((draw >> 32) % count);
    const PathState &first = request.paths[*a], &second = request.paths[*b];
    return Better(second, first, request.now) ? b : a;
  }

  static bool Better(const PathState& x, const PathState& y, Nanos now) {
    if (Known(x, now) && Known(y, now)) {
      const Nanos rx = x.rtt.srtt(), ry = y.rtt.srtt();
      if (rx < ry - ry / kNoise) return true;
      if (ry < rx - rx / kNoise) return false;
    }
    return x.inflight_bytes < y.inflight_bytes;
  }
  static bool Known(const PathState& path, Nanos now) {
    return path.rtt.has_sample() && now - path.rtt_taken <= kStale;
  }

  static constexpr uint64_t kGamma = 0x9e3779b97f4a7c15ull;  // SplitMix64's
  uint64_t state_;
};

}  // namespace

std::unique_ptr<PathSelector> MakePowerOfTwo(uint64_t seed) {
  return std::make_unique<PowerOfTwo>(seed);
}

}  // namespace uccl::core
