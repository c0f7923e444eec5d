// See application.h.
#include "csrc/sim/application.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "csrc/base/hash.h"

namespace uccl::sim {

Application::Application(const ApplicationSpec& spec, const Workload* workload, HostStack* hosts,
                         const Contents* contents, Checker* checker, EventQueue* events)
    : spec_(spec),
      workload_(workload),
      hosts_(hosts),
      contents_(contents),
      checker_(checker),
      events_(events),
      progress_(workload->flows.size()),
      records_(workload->flows.size()),
      gates_(workload->gates),
      behind_gate_(workload->gates.size()) {
  for (uint64_t i = 1; i <= spec.depth && spec.depth > 1; ++i) {
    const uint64_t packets =
        (spec.segment_bytes * i / spec.depth + spec.packet_bytes - 1) / spec.packet_bytes;
    ramp_.push_back(std::clamp<uint64_t>(packets * spec.packet_bytes, 1, spec.segment_bytes));
    ramp_bytes_ += ramp_.back();
  }
  uint32_t num_hosts = 0;
  for (const Flow& flow : workload->flows) num_hosts = std::max({num_hosts, flow.src, flow.dst});
  waiting_.resize(num_hosts + 1);
  active_.resize(num_hosts + 1);
}

uint32_t Application::Segments(const Flow& flow) const {
  const uint64_t ramp = Ramps(flow) ? ramp_bytes_ : 0;
  const uint64_t whole = (flow.bytes - ramp + spec_.segment_bytes - 1) / spec_.segment_bytes;
  return static_cast<uint32_t>(std::max<uint64_t>(1, whole + (ramp > 0 ? ramp_.size() : 0)));
}

uint64_t Application::SegmentBytes(const Flow& flow, uint32_t segment) const {
  if (!Ramps(flow))
    return std::min(spec_.segment_bytes, flow.bytes - segment * spec_.segment_bytes);
  if (segment < ramp_.size()) return ramp_[segment];
  const uint64_t begin = ramp_bytes_ + (segment - ramp_.size()) * spec_.segment_bytes;
  return std::min(spec_.segment_bytes, flow.bytes - begin);
}

core::MessageInfo Application::Describe(uint32_t flow, uint32_t segment) const {
  core::MessageInfo info;
  info.tag = {flow, segment};
  info.digest = HashWords({flow, segment});
  info.size_bytes = SegmentBytes(workload_->flows[flow], segment);
  return info;
}

void Application::Start() {
  for (uint32_t f = 0; f < workload_->flows.size(); ++f) {
    const Flow& flow = workload_->flows[f];
    if (flow.gate == kNoGate) {
      events_->Push(flow.start, EventType::kStartFlow, f);
    } else {
      behind_gate_[flow.gate].push_back(f);
    }
  }
}

void Application::OnStartFlow(Nanos now, uint32_t flow) {
  records_[flow].begin = now;
  waiting_[workload_->flows[flow].src].push_back(flow);
  Launch(now, workload_->flows[flow].src);
}

void Application::Launch(Nanos now, uint32_t host) {
  while (!waiting_[host].empty() && active_[host] < spec_.concurrency) {
    const uint32_t flow = waiting_[host].front();
    waiting_[host].pop_front();
    ++active_[host];
    PostMore(now, flow);
  }
}

void Application::PostMore(Nanos now, uint32_t f) {
  const Flow& flow = workload_->flows[f];
  Progress& progress = progress_[f];
  const uint32_t segments = Segments(flow);
  while (progress.next_recv < segments && progress.recvs < spec_.depth) {
    const MessageId id{f, progress.next_recv++};
    const uint64_t size = SegmentBytes(flow, id.segment);
    const Result<EndId> end = hosts_->EndOf(flow.dst, flow.src, id.segment % spec_.lanes);
    if (!end.ok()) {
      status_ = end.status();
      return;
    }
    Posted posted;
    posted.size = size;
    auto& free = free_[std::bit_ceil(size)];
    if (free.empty()) {
      posted.buffer = std::make_unique<std::byte[]>(std::bit_ceil(size));
    } else {
      posted.buffer = std::move(free.back());
      free.pop_back();
    }
    posted_bytes_ += size;
    peak_posted_bytes_ = std::max(peak_posted_bytes_, posted_bytes_);
    ++progress.recvs;
    const MutableBytes buffer(posted.buffer.get(), size);
    posted_[Token(id)] = std::move(posted);
    hosts_->PostRecv(now, end.value(), Describe(f, id.segment), buffer, Token(id));
  }
  while (progress.next_send < segments && progress.sends < spec_.depth) {
    const MessageId id{f, progress.next_send++};
    const uint64_t size = SegmentBytes(flow, id.segment);
    const Result<EndId> end = hosts_->EndOf(flow.src, flow.dst, id.segment % spec_.lanes);
    if (!end.ok()) {
      status_ = end.status();
      return;
    }
    ++progress.sends;
    checker_->OnHandedIn(now, id, size);
    hosts_->Send(now, end.value(), Describe(f, id.segment), contents_->Of(id, size), Token(id));
  }
}

void Application::OnEvent(Nanos now, EndId end, core::Event event) {
  const MessageId id{static_cast<uint32_t>(event.token >> 32), static_cast<uint32_t>(event.token)};
  switch (event.kind) {
    case core::EventKind::kRecvDone:
      return OnRecvDone(now, id, event.status);
    case core::EventKind::kSendDone:
      return OnSendDone(now, id, event.status);
    case core::EventKind::kMismatch:
      return checker_->Require(now, false, "flow " + std::to_string(id.flow) + " met a mismatch");
    case core::EventKind::kControl:
      return checker_->Require(now, false, "a control message nobody sent");
    case core::EventKind::kArrived:
      return checker_->Require(now, false, "a put nobody sent");
    case core::EventKind::kFailed:
      return checker_->Require(now, false,
                               "connection " + std::to_string(hosts_->host_of(end)) + " -> " +
                                   std::to_string(hosts_->peer_of(end)) +
                                   " failed: " + event.status.ToString());
  }
}

void Application::OnRecvDone(Nanos now, MessageId id, const Status& status) {
  if (!status.ok()) return;  // kFailed follows
  const auto it = posted_.find(Token(id));
  if (it == posted_.end()) {
    return checker_->Require(now, false, "a receive that was not posted is done");
  }
  Posted posted = std::move(it->second);
  posted_.erase(it);
  checker_->OnArrived(now, id, Bytes(posted.buffer.get(), posted.size));
  received_bytes_ += posted.size;
  posted_bytes_ -= posted.size;
  free_[std::bit_ceil(posted.size)].push_back(std::move(posted.buffer));
  Progress& progress = progress_[id.flow];
  --progress.recvs;
  if (++progress.received == Segments(workload_->flows[id.flow]))
    return OnFlowArrived(now, id.flow);
  PostMore(now, id.flow);
}

void Application::OnSendDone(Nanos now, MessageId id, const Status& status) {
  if (!status.ok()) return;
  checker_->OnSendDone(now, id);
  const Flow& flow = workload_->flows[id.flow];
  Progress& progress = progress_[id.flow];
  --progress.sends;
  PostMore(now, id.flow);
  if (progress.sends == 0 && progress.next_send == Segments(flow) && !progress.all_sent) {
    progress.all_sent = true;
    --active_[flow.src];
    Launch(now, flow.src);
  }
}

void Application::OnFlowArrived(Nanos now, uint32_t f) {
  records_[f].end = now;
  ++finished_;
  const Flow& flow = workload_->flows[f];
  if (flow.signal == kNoGate || --gates_[flow.signal] > 0) return;
  for (uint32_t next : behind_gate_[flow.signal]) {
    events_->Push(std::max(now, workload_->flows[next].start), EventType::kStartFlow, next);
  }
}

}  // namespace uccl::sim
