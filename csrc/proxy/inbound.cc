// See inbound.h.
#include "csrc/proxy/inbound.h"

#include <string>
#include <utility>

namespace uccl::proxy {
namespace {

Status Violation(const PutNote& note, const std::string& what) {
  Status status = Status::Error(StatusCode::kProtocol,
                                "rank " + std::to_string(note.source) + " sent a put " + what);
  status.peer = note.source;
  return status;
}

}  // namespace

Inbound::Inbound(std::shared_ptr<Region> region, uint32_t window)
    : region_(std::move(region)), window_(window) {}

Result<Inbound::Verdict> Inbound::OnArrival(ProcessId process, const PutNote& note,
                                            uint64_t size_bytes) {
  const Region& region = *region_;
  if (note.source >= region.ranks() || region.ProcessOf(note.source) != process) {
    return Violation(note, "in the name of a rank that its process does not own");
  }
  if (note.destination != region.rank()) return Violation(note, "for another rank");
  const uint64_t bytes = region.memory().size();
  if (note.offset > bytes || size_bytes > bytes - note.offset) {
    return Violation(note, "of " + std::to_string(size_bytes) + " bytes to offset " +
                               std::to_string(note.offset) + " of a region of " +
                               std::to_string(bytes));
  }
  const bool counts = note.amount > 0;
  if (counts && note.counter >= region.counters().size()) {
    return Violation(note, "for counter " + std::to_string(note.counter) + " of " +
                               std::to_string(region.counters().size()));
  }
  Verdict verdict;
  if (note.kind == PutKind::kAck) {
    verdict.answer.our_ack = note;
    return verdict;
  }
  std::lock_guard lock(mutex_);
  if (note.kind == PutKind::kBarrier) {
    auto& barrier =
        barriers_.try_emplace(note.channel, region.rank(), region.ranks()).first->second;
    std::vector<Barrier::Note> said;
    bool passed = false;
    if (!barrier.OnNote(note.source, note.number, note.counter, &said, &passed)) {
      return Violation(note, "of a barrier that is not due");
    }
    Tell(note.channel, said, &verdict.answer);
    if (passed) verdict.answer.passed = note.channel;
    return verdict;
  }
  Ordering& stream =
      streams_.try_emplace({note.source, note.fifo, note.channel}, window_).first->second;
  if (note.kind == PutKind::kAckRequest) {
    if (!stream.OnAckRequest(note.number)) {
      return Violation(note, "that asks about what it cannot have sent");
    }
    Acknowledge(note, &stream, &verdict.answer);
    return verdict;
  }
  const Ordering::Put put{note.kind == PutKind::kCount, {note.counter, note.amount}};
  switch (stream.OnArrival(note.number, put)) {
    case Ordering::Arrival::kDuplicate:
      ++duplicates_;
      verdict.what = Verdict::What::kDrop;
      return verdict;
    case Ordering::Arrival::kBeyondWindow:
      return Violation(note, "beyond the window of " + std::to_string(window_) +
                                 "; proxy_fifo_inflight (JAX_UCCL_PROXY_FIFO_INFLIGHT) must be "
                                 "equal on all processes");
    case Ordering::Arrival::kFresh:
      break;
  }
  if (size_bytes == 0) {
    Land(note, &stream, &verdict.answer);
  } else {
    verdict.what = Verdict::What::kReceive;
    verdict.buffer = region.memory().subspan(note.offset, size_bytes);
  }
  return verdict;
}

Inbound::Answer Inbound::OnLanded(const PutNote& note) {
  Answer answer;
  std::lock_guard lock(mutex_);
  Land(note, &streams_.at({note.source, note.fifo, note.channel}), &answer);
  return answer;
}

void Inbound::Land(const PutNote& note, Ordering* stream, Answer* answer) {
  std::vector<CounterUpdate> updates;
  stream->OnLanded(note.number, &updates);
  // With the mutex held: counts of one stream show in the order of their numbers.
  for (const CounterUpdate& update : updates) region_->Raise(update.counter, update.amount);
  answer->raised = !updates.empty();
  Acknowledge(note, stream, answer);
}

void Inbound::Acknowledge(const PutNote& note, Ordering* stream, Answer* answer) const {
  const std::optional<uint32_t> below = stream->TakeAck();
  if (!below) return;
  PutNote ack;
  ack.kind = PutKind::kAck;
  ack.channel = note.channel;
  ack.fifo = note.fifo;
  ack.number = *below;
  ack.source = region_->rank();
  ack.destination = note.source;
  answer->notes.push_back(ack);
}

void Inbound::Tell(uint8_t channel, const std::vector<Barrier::Note>& said, Answer* answer) const {
  for (const Barrier::Note& note : said) {
    PutNote put;
    put.kind = PutKind::kBarrier;
    put.channel = channel;
    put.number = note.generation;
    put.counter = note.round;
    put.source = region_->rank();
    put.destination = note.to;
    answer->notes.push_back(put);
  }
}

Inbound::Answer Inbound::EnterBarrier(uint8_t channel) {
  Answer answer;
  std::lock_guard lock(mutex_);
  auto& barrier = barriers_.try_emplace(channel, region_->rank(), region_->ranks()).first->second;
  std::vector<Barrier::Note> said;
  if (barrier.Enter(&said)) answer.passed = channel;
  Tell(channel, said, &answer);
  return answer;
}

uint64_t Inbound::duplicates() const {
  std::lock_guard lock(mutex_);
  return duplicates_;
}

}  // namespace uccl::proxy
