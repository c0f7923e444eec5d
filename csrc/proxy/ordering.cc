// See ordering.h.
#include "csrc/proxy/ordering.h"

#include <algorithm>

namespace uccl::proxy {

Ordering::Ordering(uint32_t window, uint32_t first)
    : window_(window), next_(first), acked_(first), requested_(first) {}

Ordering::Arrival Ordering::OnArrival(uint32_t number, const Put& put) {
  const uint32_t distance = number - next_;
  // Behind: half of the numbers, as the window is far smaller.
  if (static_cast<int32_t>(distance) < 0) return Arrival::kDuplicate;
  if (distance >= window_) return Arrival::kBeyondWindow;
  if (distance >= slots_.size()) slots_.resize(distance + 1);
  Slot& slot = slots_[distance];
  if (slot.state != State::kAbsent) return Arrival::kDuplicate;
  slot = {State::kArriving, put};
  return Arrival::kFresh;
}

bool Ordering::OnLanded(uint32_t number, std::vector<CounterUpdate>* updates) {
  const uint32_t distance = number - next_;
  if (distance >= slots_.size() || slots_[distance].state != State::kArriving) return false;
  Slot& landed = slots_[distance];
  landed.state = State::kLanded;
  if (!landed.put.fence && landed.put.update.amount > 0) updates->push_back(landed.put.update);
  while (!slots_.empty() && slots_.front().state == State::kLanded) {
    const Put& put = slots_.front().put;
    if (put.fence && put.update.amount > 0) updates->push_back(put.update);
    slots_.pop_front();
    ++next_;
  }
  return true;
}

bool Ordering::OnAckRequest(uint32_t number) {
  const uint32_t wanted = number - acked_, news = next_ - acked_;
  if (static_cast<int32_t>(wanted) <= 0) return true;  // answered already
  // The window is all that it may have sent beyond what has landed.
  if (wanted > news + window_) return false;
  if (wanted > requested_ - acked_) requested_ = number;
  return true;
}

std::optional<uint32_t> Ordering::TakeAck() {
  const uint32_t news = next_ - acked_, wanted = requested_ - acked_;
  const bool asked = wanted > 0 && news >= wanted;
  if (news < std::max(window_ / 4, 1u) && !asked) return std::nullopt;
  acked_ = next_;
  if (wanted <= news) requested_ = next_;
  return acked_;
}

}  // namespace uccl::proxy
