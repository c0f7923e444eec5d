// EQDS, from V. Olteanu et al., "An edge-queued datagram service for all datacenter traffic",
// NSDI'22: the receiver paces credits at the rate of its link and hands them round its senders.
//
// Lists, in the order of precedence; each is served round robin (section 3.2 of the paper):
//   retransmit  wants to repeat lost packets: they hold up whole messages
//   active      wants more than it was granted
//   idle        was granted all it wants: what nobody needs tops up what it may send unasked, so
//               that its next message starts at once
// In none of them: a flow that has all it may have, or with so much outstanding that its sender or
// its way here is the bottleneck; arrivals bring it back.
//
// Deviations. The paper's switches trim packets to their headers instead of dropping them, and the
// headers tell the receiver what to ask for again. Networks here drop, so the sender finds its
// losses and asks again (a request to send, DEMAND on the wire). The paper bounds what is
// outstanding by the sender's window; here the receiver does as well, so that a sender that stopped
// does not eat the link's credits. Without trimming, what many senders sent unasked at once stands
// in the queue for as long as credits come at the link's rate; so they come slower while more is
// under way than the pipe holds (SIRD, NSDI'25, and Homa, SIGCOMM'18, bound what they grant in all
// for the same reason). Slower, not never: what is under way may have been lost.
#include "csrc/core/credit/eqds.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace uccl::core {
namespace {

// Of the link's rate, so that a queue which formed nevertheless drains; ACKs need some as well.
constexpr double kUtilization = 0.98;
// What a datagram costs on an Ethernet besides its UDP payload: preamble, header, FCS, gap, IPv4,
// UDP.
constexpr int64_t kFramingBytes = 66;
// Time that nobody used is lost, but for what late timers need: at most this, and at most so many
// credits, or they would come in a burst.
constexpr Nanos kMostSlack = std::chrono::microseconds(100);
constexpr int64_t kSlackQuanta = 4;
// The pace of credits while a queue drains.
constexpr double kDrainingShare = 0.25;

enum List : uint8_t { kNone, kRetransmit, kActive, kIdle, kNumLists };

class Eqds final : public ReceiverScheduler {
 public:
  explicit Eqds(const CreditParams& params)
      : params_(params),
        slack_(std::min(kMostSlack,
                        Duration(static_cast<double>(kSlackQuanta * params.quantum_bytes)))) {}

  void Add(CreditFlow* flow) override { Place(flow); }
  void Remove(CreditFlow* flow) override {
    Unlink(flow);
    under_way_ -= std::exchange(flow->counted, 0);
  }
  void Update(CreditFlow* flow) override { Place(flow); }

  CreditFlow* Grant(Nanos now) override {
    if (next_grant_ > now) return nullptr;
    for (const List list : {kRetransmit, kActive, kIdle}) {
      CreditFlow* flow = heads_[list];
      if (flow == nullptr) continue;
      Unlink(flow);
      const int64_t bytes = Amount(*flow);
      flow->granted += bytes;
      flow->again = std::max<int64_t>(flow->again - bytes, 0);
      flow->credit_due = true;
      const int64_t datagrams = (bytes + flow->datagram_bytes - 1) / flow->datagram_bytes;
      const double share =
          params_.pipe_bytes > 0 && under_way_ > params_.pipe_bytes ? kDrainingShare : 1;
      next_grant_ = std::max(next_grant_, now - slack_) +
                    Duration(static_cast<double>(bytes + datagrams * kFramingBytes) / share);
      Place(flow);
      return flow;
    }
    return nullptr;
  }

  Nanos NextGrant() const override {
    const bool any =
        std::any_of(heads_.begin(), heads_.end(), [](auto* h) { return h != nullptr; });
    return any ? next_grant_ : kNever;
  }

  int64_t quantum_bytes() const override { return params_.quantum_bytes; }

  std::string Snapshot() const override {
    std::string text = "eqds";
    constexpr std::array kNames = {"", " retransmit=", " active=", " idle="};
    for (size_t list = kRetransmit; list < kNumLists; ++list) {
      text += kNames[list] + std::to_string(sizes_[list]);
    }
    return text + " under_way=" + std::to_string(under_way_) +
           " next_ns=" + std::to_string(next_grant_.count());
  }

 private:
  Nanos Duration(double bytes) const {
    return Nanos(static_cast<int64_t>(
        bytes * 1e9 / (static_cast<double>(params_.rate_bytes_per_s) * kUtilization)));
  }

  // What the flow can still use, in all.
  static int64_t Need(const CreditFlow& flow) {
    return flow.granted < flow.wanted ? flow.wanted - flow.granted
                                      : flow.wanted + flow.initial_bytes - flow.granted;
  }
  int64_t Amount(const CreditFlow& flow) const {
    return std::min(params_.quantum_bytes, Need(flow));
  }
  List Belongs(const CreditFlow& flow) const {
    const int64_t need = Need(flow);
    if (need <= 0) return kNone;
    if (flow.Outstanding() + std::min(params_.quantum_bytes, need) > flow.limit_bytes) return kNone;
    if (flow.granted >= flow.wanted) return kIdle;
    return flow.again > 0 ? kRetransmit : kActive;
  }
  // A flow that stays in its list keeps its place there.
  void Place(CreditFlow* flow) {
    under_way_ += flow->UnderWay() - flow->counted;
    flow->counted = flow->UnderWay();
    if (flow->granted >= flow->wanted) flow->again = 0;
    const List list = Belongs(*flow);
    if (list == flow->list) return;
    Unlink(flow);
    if (list == kNone) return;
    flow->list = list;
    flow->previous = tails_[list];
    (tails_[list] != nullptr ? tails_[list]->next : heads_[list]) = flow;
    tails_[list] = flow;
    ++sizes_[list];
  }
  void Unlink(CreditFlow* flow) {
    if (flow->list == kNone) return;
    (flow->previous != nullptr ? flow->previous->next : heads_[flow->list]) = flow->next;
    (flow->next != nullptr ? flow->next->previous : tails_[flow->list]) = flow->previous;
    --sizes_[flow->list];
    flow->next = flow->previous = nullptr;
    flow->list = kNone;
  }

  const CreditParams params_;
  const Nanos slack_;
  Nanos next_grant_{0};
  int64_t under_way_ = 0;  // of all flows
  std::array<CreditFlow*, kNumLists> heads_{}, tails_{};
  std::array<size_t, kNumLists> sizes_{};
};

}  // namespace

std::unique_ptr<ReceiverScheduler> MakeEqds(const CreditParams& params) {
  return std::make_unique<Eqds>(params);
}

}  // namespace uccl::core
