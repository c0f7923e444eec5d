// What becomes of packets in flight: acknowledgements, losses, timers. See sender.h, and
// docs/reliability.md for the rules.
#include <algorithm>
#include <bit>
#include <string>

#include "csrc/core/recovery/loss_detector.h"
#include "csrc/core/sender.h"

namespace uccl::core {
namespace {

constexpr uint32_t kMaxBackoff = 16;  // doublings; max_rto cuts in long before
constexpr size_t kPacketsPerTimeout =
    2;  // sent again by a timeout; their ACKs reveal the other losses

Status GivenUp(const SentPacket& packet, uint64_t psn) {
  Status status = Status::Error(
      StatusCode::kAllPathsFailed,
      "packet " + std::to_string(static_cast<uint32_t>(psn)) + " was sent " +
          std::to_string(packet.transmissions) +
          " times and never acknowledged, nor was anything else of late (max_retries)");
  status.path = ToInt(packet.path);
  status.bytes = packet.wire_bytes;
  return status;
}

}  // namespace

void Sender::LeaveFlight(const SentPacket& packet) {
  inflight_bytes_ -= packet.wire_bytes;
  paths_[ToInt(packet.path)].inflight_bytes -= packet.wire_bytes;
}

void Sender::OnPacketAcked(SentPacket& packet, Nanos now, int64_t* acked_bytes) {
  if (packet.state == SentState::kInFlight) LeaveFlight(packet);
  *acked_bytes += packet.wire_bytes;
  PathState& path = paths_[ToInt(packet.path)];
  path.acked_bytes_now += packet.wire_bytes;
  if (path.acked_packets_now++ == 0) newly_acked_.push_back(packet.path);
  if (packet.transmissions == 1) {
    path.LearnOrder(packet.path_seq);
    monitor_.OnAlive(&path, packet.sent);
  }
  // Acknowledged before the last transmission can have arrived: the one before was not lost, only
  // late.
  const bool too_soon =
      rtt_.has_sample() && packet.transmissions > 1 && now - packet.sent < rtt_.min_rtt() / 2;
  if (too_soon) {
    PathState& previous = paths_[ToInt(packet.previous_path)];
    if (packet.previous_path_seq < previous.highest_acked_seq) {
      previous.LearnReordering(previous.highest_acked_seq - packet.previous_path_seq);
    }
  }
  if (too_soon || packet.state == SentState::kLost) ++stats_->spurious_retransmits;
  if (packet.again_wanted) credit_.OnVoid(packet.wire_bytes);  // not lost after all
  packet.again_wanted = false;
  packet.state = SentState::kAcked;
  OutMessage* m = packet.message;
  packet.message = nullptr;
  --m->unacked_packets;
  ReleaseIfDone(m);
}

void Sender::OnEchoes(Nanos now, Nanos waited, const wire::Ack& ack, AckSample* sample) {
  for (size_t i = 0; i < ack.num_echoes; ++i) {
    const wire::Echo& echo = ack.echoes[i];
    if (echo.path >= paths_.size()) continue;
    PathState& path = paths_[echo.path];
    // A sum modulo 2^16; an older one comes from an ACK that was overtaken.
    const auto marks = static_cast<int16_t>(echo.marked - path.marks_echoed);
    if (marks > 0) {
      path.marks_echoed = echo.marked;
      path.marks_now += static_cast<uint32_t>(marks);
      path.packets_marked += static_cast<uint64_t>(marks);
    }
    // Modulo 2^32 microseconds; a sample beyond half of that is nonsense from a confused peer.
    const auto micros = static_cast<int32_t>(static_cast<uint32_t>(ToMicros(now)) - echo.timestamp);
    if (micros < 0) continue;
    monitor_.OnAlive(&path, now - FromMicros(micros));
    // A longer one says no more, and may come from a datagram that somebody kept and replayed.
    const Nanos rtt = std::clamp(FromMicros(micros), Nanos(1), config_.max_rto);
    path.rtt.Sample(rtt);
    path.rtt_taken = now;
    path.rtt_now = rtt;
    path.waited_now = std::min(waited, rtt - Nanos(1));
    rtt_.Sample(rtt);
    sample->path = static_cast<PathId>(echo.path);
    sample->rtt = rtt;
    sample->waited = path.waited_now;
  }
}

bool Sender::OnAck(Nanos now, const wire::Header& header, const wire::Ack& ack) {
  const uint64_t next = ExpandSequence(ack.next, ledger_.base());
  if (next > ledger_.next()) {  // acknowledges what was never sent
    ++stats_->malformed;
    return false;
  }
  ++stats_->acks_received;
  eager_consumed_bytes_ =
      std::max(eager_consumed_bytes_,
               std::min(static_cast<int64_t>(ack.eager_consumed_bytes), eager_sent_bytes_));

  OnCredit({ack.granted_bytes});

  AckSample sample;
  const Nanos waited = header.path < paths_.size()
                           ? paths_[header.path].reverse.Sample(now, header.timestamp)
                           : Nanos(0);
  OnEchoes(now, waited, ack, &sample);
  const auto acknowledge = [&](uint64_t psn) {
    SentPacket& packet = ledger_.at(psn);
    if (packet.state == SentState::kAcked) return;
    OnPacketAcked(packet, now, &sample.acked_bytes);
  };
  for (uint64_t psn = ledger_.base(); psn < next; ++psn) acknowledge(psn);
  for (size_t i = 0; i < ack.bitmap_bytes; ++i) {
    for (auto bits = static_cast<unsigned>(ack.bitmap[i]); bits != 0; bits &= bits - 1) {
      const uint64_t psn = next + 1 + i * 8 + static_cast<unsigned>(std::countr_zero(bits));
      if (psn >= ledger_.base() && psn < ledger_.next()) acknowledge(psn);
    }
  }
  ledger_.Trim();
  const bool progress = sample.acked_bytes > 0;
  if (progress) {
    backoff_ = 0;
    tail_probed_ = false;
    timer_start_ = now;
  }
  for (const PathId id : newly_acked_) {
    const PathState& path = paths_[ToInt(id)];
    selector_->OnAcked(id, path.acked_packets_now, path.marks_now);
  }
  newly_acked_.clear();
  sample.now = now;
  sample.inflight_bytes = inflight_bytes_;
  congestion_.OnAck(sample);
  // Also without progress: the echo of a probe tells that what went before it is late.
  newly_lost_.clear();
  DetectLosses(ledger_, paths_, RttEstimator().Rto(config_.min_rto, config_.max_rto), &newly_lost_);
  stats_->retransmits_fast += newly_lost_.size();
  for (uint64_t psn : newly_lost_) MarkLost(now, psn);
  JudgePaths(now);
  RefreshDelays();
  return progress;
}

void Sender::MarkLost(Nanos now, uint64_t psn) {
  SentPacket& packet = ledger_.at(psn);
  packet.state = SentState::kLost;
  LeaveFlight(packet);
  WantAgain(&packet);
  PathState& path = paths_[ToInt(packet.path)];
  ++path.packets_lost;
  monitor_.OnLoss(&path, packet.sent);
  lost_.push_back(psn);
  congestion_.OnLoss({now, packet.path, packet.wire_bytes, inflight_bytes_, packet.sent});
}

void Sender::JudgePaths(Nanos now) {
  monitor_.Judge(now, [&](size_t path) { congestion_.OnPathFailed(now, path); });
}

// ---- timers ----

// RFC 8985 section 7.2: twice the round trip. Deviation: of the slowest path with something in
// flight, and never less than an ordinary late answer takes. Receivers do not delay ACKs, so there
// is no term for it. A path of which nothing is known yet leaves the matter to the timeout.
void Sender::NoteDelays(const PathState& path) {
  const RttEstimator& rtt = path.rtt;
  slowest_rto_ = std::max(slowest_rto_, rtt.Rto(config_.min_rto, config_.max_rto));
  if (path.inflight_bytes == 0) return;
  const Nanos tail = rtt.has_sample() ? std::max(2 * rtt.srtt(), rtt.Bound()) : kNever;
  tail_delay_ = std::max(tail_delay_, tail);
}

// The slowest path decides: its packets are not late before its own round trip is over. One of
// which nothing is known yet counts as well while it has something to answer.
void Sender::RefreshDelays() {
  slowest_rto_ = rtt_.Rto(config_.min_rto, config_.max_rto);
  tail_delay_ = kMinTailProbeDelay;
  for (const PathState& path : paths_) {
    if (!path.failed() && (path.rtt.has_sample() || path.inflight_bytes > 0)) NoteDelays(path);
  }
}

Nanos Sender::Rto() const {
  Nanos rto = slowest_rto_;
  for (uint32_t i = 0; i < backoff_ && rto < config_.max_rto; ++i) rto *= 2;
  return std::min(rto, std::max(config_.min_rto, config_.max_rto));
}

Nanos Sender::TailProbeDelay() const { return tail_probed_ || backoff_ > 0 ? kNever : tail_delay_; }

Nanos Sender::LossTimer() const {
  return inflight_bytes_ > 0 ? timer_start_ + std::min(TailProbeDelay(), Rto()) : kNever;
}

Nanos Sender::NextTimeout() const {
  const Nanos probe = Outstanding() ? monitor_.NextProbe() : kNever;
  return std::min({LossTimer(), paced_until_, probe, credit_.NextTimeout()});
}

Status Sender::OnTimeout(Nanos now) {
  if (paced_until_ <= now) paced_until_ = kNever;  // the next poll sends
  credit_.OnTimeout(now);
  if (Outstanding()) monitor_.QueueDueProbes(now);
  if (now < LossTimer()) return Status::Ok();
  if (now >= timer_start_ + Rto()) return OnRetransmissionTimeout(now);
  tail_probed_ = true;
  timer_start_ = now;  // RFC 8985 section 7.3: the timeout counts from the probe
  for (uint64_t psn = ledger_.next(); psn-- > ledger_.base();) {
    if (ledger_.at(psn).state != SentState::kInFlight) continue;
    tail_probe_ = psn;
    break;
  }
  return Status::Ok();
}

Status Sender::OnRetransmissionTimeout(Nanos now) {
  ++stats_->timeouts;
  backoff_ = std::min(backoff_ + 1, kMaxBackoff);
  const Nanos since = timer_start_;
  timer_start_ = now;
  congestion_.OnTimeout(now);
  size_t again = 0;
  for (uint64_t psn = ledger_.base(); psn < ledger_.next() && again < kPacketsPerTimeout; ++psn) {
    const SentPacket& packet = ledger_.at(psn);
    if (packet.state != SentState::kInFlight) continue;
    if (packet.transmissions > config_.max_retries) return GivenUp(packet, psn);
    MarkLost(now, psn);
    ++again;
  }
  stats_->retransmits_timeout += again;
  JudgePaths(now);
  RefreshDelays();
  // Two packets find the one path that still works only by luck. From the second timeout on every
  // path is asked at once; the first answer also shows which ones are dead.
  if (backoff_ > 1 && !UsesSinglePath(config_.path_policy))
    monitor_.QueueProbesOfSilentPaths(since);
  return Status::Ok();
}

}  // namespace uccl::core
