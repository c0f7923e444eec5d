// See none.h.
#include "csrc/core/cc/none.h"

namespace uccl::core {
namespace {

class FixedWindow final : public CongestionController {
 public:
  explicit FixedWindow(const CongestionParams& params) : window_bytes_(params.window_bytes) {}
  void OnSent(Nanos, int64_t) override {}
  void OnAck(const AckSample&) override {}
  void OnLoss(const LossSample&) override {}
  void OnEcn(const AckSample&) override {}
  void OnTimeout(Nanos) override {}
  int64_t window_bytes() const override { return window_bytes_; }
  int64_t pacing_rate_bytes_per_s() const override { return 0; }
  std::string Snapshot() const override { return "window_bytes=" + std::to_string(window_bytes_); }

 private:
  const int64_t window_bytes_;
};

}  // namespace

std::unique_ptr<CongestionController> MakeFixedWindow(const CongestionParams& params) {
  return std::make_unique<FixedWindow>(params);
}

}  // namespace uccl::core
