// See throughput.h.
#include "csrc/moe/throughput.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "csrc/base/huge_pages.h"
#include "csrc/executor/host_kernels.h"
#include "csrc/executor/pipes.h"
#include "csrc/moe/row_ranges.h"
#include "csrc/moe/rows.h"

namespace uccl::moe {
namespace {

// Whole rows, or bytes [column, column + bytes) of one.
struct RowPart {
  uint64_t row = 0, rows = 1, column = 0, bytes = 0;
};

// The parts of rows in bytes [offset, offset + bytes) of rows that lie one after the other.
std::vector<RowPart> PartsOf(uint64_t offset, uint64_t bytes, uint64_t row_bytes) {
  std::vector<RowPart> parts;
  for (const uint64_t end = offset + bytes; offset < end;) {
    RowPart part;
    part.row = offset / row_bytes, part.column = offset % row_bytes;
    part.bytes = std::min(end - offset, row_bytes - part.column);
    if (part.bytes == row_bytes) part.rows = (end - offset) / row_bytes;
    parts.push_back(part);
    offset += part.rows * part.bytes;
  }
  return parts;
}

// Whether each row is as much as it will ever be.
Status Moved(const cuda::MoveRowsParams& params, const char* what) {
  uint64_t fault = cuda::kNoFault;
  cuda::MoveRowsParams checked = params;
  checked.fault = &fault;
  if (Status status = executor::RunOnHost(checked); !status.ok()) return status;
  if (fault == cuda::kNoFault) return Status::Ok();
  return InvalidRows(std::string("a row to ") + what + " lies outside of its buffer");
}

// The side of `params` that reads the entries from `first` on, which is bytes from `column` on.
void ReadFrom(const SentRows& sent, uint64_t first, uint64_t column, uint64_t row_bytes,
              cuda::MoveRowsParams* params) {
  params->from = sent.rows + column, params->from_stride = row_bytes;
  params->from_rows = sent.num_rows;
  if (sent.index != nullptr) {
    params->from_index = sent.index + first;
  } else {
    const uint64_t skipped = std::min(first, sent.num_rows);
    params->from += skipped * row_bytes, params->from_rows -= skipped;
  }
  params->fill_missing = true;  // nothing of what lay there before travels
}
void WriteTo(const PlacedRows& placed, uint64_t first, uint64_t column, uint64_t row_bytes,
             cuda::MoveRowsParams* params) {
  params->to = placed.rows + column, params->to_stride = row_bytes;
  params->to_rows = placed.num_rows;
  if (placed.places != nullptr) {
    params->repeat = placed.width;
    params->to_index = placed.places + first * placed.width;
  } else {
    const uint64_t skipped = std::min(first, placed.num_rows);
    params->to += skipped * row_bytes, params->to_rows -= skipped;
  }
}

// One run of one rank.
class ExchangeRun final {
 public:
  ExchangeRun(const RowExchange& x, uint64_t* waited, executor::Pipes* pipes, uint64_t number)
      : x_(x),
        waited_(waited),
        pipes_(pipes),
        number_(number),
        me_(pipes->rank()),
        ranks_(pipes->ranks()) {}

  Status Go() {
    if (x_.row_bytes == 0) return InvalidRows("rows without bytes");
    if (Status status = List(); !status.ok()) return status;
    Announce();
    started_ns_ = executor::HostClockNs();
    if (Status status = Zero(); !status.ok()) return status;
    if (x_.relay.has_value()) {
      const Range& own = hop_in_[me_];
      if (Status status = MoveOwn(x_.relay->out, hop_out_[me_], x_.relay->in, own); !status.ok())
        return status;
      if (Status status = OnRelayed(own.first, own.count); !status.ok()) return status;
    } else if (Status status = MoveMine(); !status.ok()) {
      return status;
    }
    return pipes_->Exchange(sends_, receives_);
  }

 private:
  // All messages, those of the first leg before those of the second.
  Status List() {
    via_.resize(ranks_);
    std::iota(via_.begin(), via_.end(), 0u);
    std::vector<bool> to(ranks_, true), from(ranks_, true);
    if (x_.relay.has_value()) {
      if (Status status = ListHops(&to, &from); !status.ok()) return status;
    }
    auto out = RangesOf(x_.out, ranks_);
    if (!out.ok()) return out.status();
    auto in = RangesOf(x_.in, ranks_);
    if (!in.ok()) return in.status();
    out_ = out.value(), in_.assign(ranks_, {});
    source_ends_.resize(ranks_);
    for (uint32_t source = 0; source < ranks_; ++source) {
      const Range& rows = in.value()[source];
      Range& message = in_[via_[source]];
      if (source_ends_[via_[source]].empty()) message.first = rows.first;
      message.count += rows.count;
      source_ends_[via_[source]].push_back({source, message.count});
    }
    if (out_[me_].count != in_[me_].count) {
      return InvalidRows(std::to_string(out_[me_].count) + " rows from rank " +
                         std::to_string(me_) + " to itself, which expects " +
                         std::to_string(in_[me_].count));
    }
    const uint32_t stage = x_.relay.has_value() ? 1 : 0;
    for (uint32_t peer = 0; peer < ranks_; ++peer) {
      if (!to[peer] && out_[peer].count > 0)
        return InvalidRows("rows for rank " + std::to_string(peer) + ", which is on another host");
      if (peer == me_) continue;
      if (to[peer]) AddSend(peer, stage, x_.out, out_[peer]);
      if (from[peer]) AddReceive(peer, stage, x_.in, in_[peer]);
    }
    return Status::Ok();
  }

  // Those of the first leg; then `to` and `from` are the ranks of the second.
  Status ListHops(std::vector<bool>* to, std::vector<bool>* from) {
    const RelayRows& relay = *x_.relay;
    const auto gateway = [&](uint32_t source, int32_t host) {
      return static_cast<uint32_t>(relay.gateways[source * relay.num_hosts + host]);
    };
    const auto outside = [](std::span<const int32_t> values, uint32_t limit) {
      return std::ranges::any_of(
          values, [&](int32_t v) { return v < 0 || static_cast<uint32_t>(v) >= limit; });
    };
    if (relay.hosts.size() != ranks_ ||
        relay.gateways.size() != uint64_t{ranks_} * relay.num_hosts ||
        outside(relay.hosts, relay.num_hosts) || outside(relay.gateways, ranks_) ||
        relay.in.places != nullptr || x_.out.rows != relay.in.rows) {
      return InvalidRows("hosts and gateways of another group of ranks");
    }
    const int32_t here = relay.hosts[me_];
    bool forwards = false;
    std::vector<bool> hop_to(ranks_, false);
    for (uint32_t r = 0; r < ranks_; ++r) {
      via_[r] = gateway(r, here);
      forwards |= via_[r] == me_;
    }
    if (!std::ranges::is_sorted(via_)) return InvalidRows("gateways out of the order of sources");
    for (uint32_t r = 0; r < ranks_; ++r) {
      (*to)[r] = forwards && relay.hosts[r] == here;
      (*from)[r] = std::ranges::count(via_, r) > 0;
    }
    for (uint32_t host = 0; host < relay.num_hosts; ++host)
      hop_to[gateway(me_, static_cast<int32_t>(host))] = true;

    auto out = RangesOf(relay.out, ranks_);
    if (!out.ok()) return out.status();
    auto in = RangesOf(relay.in, ranks_);
    if (!in.ok()) return in.status();
    hop_out_ = out.value(), hop_in_ = in.value();
    for (uint32_t peer = 0; peer < ranks_; ++peer) {
      if ((!hop_to[peer] && hop_out_[peer].count > 0) ||
          (via_[peer] != me_ && hop_in_[peer].count > 0)) {
        return InvalidRows("rows between ranks " + std::to_string(me_) + " and " +
                           std::to_string(peer) + ", neither of which is the other's gateway");
      }
      relayed_left_ += hop_in_[peer].count;
    }
    if (hop_out_[me_].count != hop_in_[me_].count)
      return InvalidRows("a gateway expects other rows from itself than it sends");
    is_relayed_.assign(relay.in.entries, false);
    for (uint32_t peer = 0; peer < ranks_; ++peer) {
      if (peer == me_) continue;
      if (hop_to[peer]) AddSend(peer, 0, relay.out, hop_out_[peer]);
      if (via_[peer] == me_) AddReceive(peer, 0, relay.in, hop_in_[peer]);
    }
    return Status::Ok();
  }

  bool IsRelay(const PlacedRows& placed) const {
    return x_.relay.has_value() && &placed == &x_.relay->in;
  }

  void AddSend(uint32_t peer, uint32_t stage, const SentRows& sent, const Range& range) {
    executor::Outgoing message;
    message.peer = peer, message.tag = {number_, stage, 0};
    message.bytes = range.count * x_.row_bytes;
    message.pack = [this, &sent, range](uint64_t offset, MutableBytes to) {
      for (const RowPart& part : PartsOf(offset, to.size(), x_.row_bytes)) {
        cuda::MoveRowsParams params;
        ReadFrom(sent, range.first + part.row, part.column, x_.row_bytes, &params);
        params.to = to.data(), params.to_rows = params.moves = part.rows;
        params.to_stride = params.channels = part.bytes;
        if (Status status = Moved(params, "send"); !status.ok()) return status;
        to = to.subspan(part.rows * part.bytes);
      }
      return Status::Ok();
    };
    if (stage == 1) {
      message.ready = [this, range, rows = uint64_t{0}]() mutable {
        while (rows < range.count && IsRelayed(range.first + rows)) ++rows;
        return rows * x_.row_bytes;
      };
    }
    sends_.push_back(std::move(message));
  }

  void AddReceive(uint32_t peer, uint32_t stage, const PlacedRows& placed, const Range& range) {
    executor::Incoming message;
    message.peer = peer, message.tag = {number_, stage, 0};
    message.bytes = range.count * x_.row_bytes;
    message.unpack = [this, peer, &placed, range](uint64_t offset, Bytes from) {
      const uint64_t before = offset / x_.row_bytes;
      const uint64_t after = (offset + from.size()) / x_.row_bytes;
      for (const RowPart& part : PartsOf(offset, from.size(), x_.row_bytes)) {
        cuda::MoveRowsParams params;
        WriteTo(placed, range.first + part.row, part.column, x_.row_bytes, &params);
        params.from = from.data(), params.from_rows = part.rows;
        params.moves = part.rows * params.repeat;
        params.from_stride = params.channels = part.bytes;
        if (Status status = Moved(params, "receive"); !status.ok()) return status;
        from = from.subspan(part.rows * part.bytes);
      }
      if (IsRelay(placed)) return OnRelayed(range.first + before, after - before);
      OnPlaced(peer, after);
      return Status::Ok();
    };
    receives_.push_back(std::move(message));
  }

  void Announce() {
    std::vector<uint64_t> to_send(ranks_), to_receive(ranks_);
    for (const auto& m : sends_) to_send[m.peer] += pipes_->layout().pieces(m.bytes);
    for (const auto& m : receives_) to_receive[m.peer] += pipes_->layout().pieces(m.bytes);
    pipes_->Announce(to_send, to_receive);
    for (uint32_t peer = 0; peer < ranks_; ++peer) pipes_->SetAwaits(peer, false);
  }

  Status Zero() const {
    cuda::MoveRowsParams params;
    params.to = x_.in.rows, params.to_index = x_.vacant, params.to_rows = x_.in.num_rows;
    params.to_stride = params.from_stride = params.channels = x_.row_bytes;
    params.moves = x_.num_vacant, params.fill_missing = true;  // there are no rows to take
    return executor::RunOnHost(params);
  }

  // Rows that stay on this rank need no proxy.
  Status MoveOwn(const SentRows& sent, const Range& out, const PlacedRows& placed,
                 const Range& in) const {
    cuda::MoveRowsParams params;
    ReadFrom(sent, out.first, 0, x_.row_bytes, &params);
    WriteTo(placed, in.first, 0, x_.row_bytes, &params);
    params.moves = out.count * params.repeat, params.channels = x_.row_bytes;
    return Moved(params, "keep");
  }
  Status MoveMine() {
    if (Status status = MoveOwn(x_.out, out_[me_], x_.in, in_[me_]); !status.ok()) return status;
    OnPlaced(me_, in_[me_].count);
    return Status::Ok();
  }

  bool IsRelayed(uint64_t entry) const {
    const int64_t row = x_.out.index == nullptr ? static_cast<int64_t>(entry) : x_.out.index[entry];
    // What is no row is found when it is packed.
    return row < 0 || static_cast<uint64_t>(row) >= is_relayed_.size() ||
           is_relayed_[static_cast<uint64_t>(row)];
  }
  Status OnRelayed(uint64_t first, uint64_t count) {
    std::fill_n(is_relayed_.begin() + static_cast<int64_t>(first), count, true);
    relayed_left_ -= count;
    if (relayed_left_ > 0 || std::exchange(moved_mine_, true)) return Status::Ok();
    return MoveMine();
  }
  // So many rows that `peer` brings are in place.
  void OnPlaced(uint32_t peer, uint64_t rows) {
    std::vector<SourceEnd>& ends = source_ends_[peer];
    const uint64_t now = executor::HostClockNs() - started_ns_;
    size_t done = 0;
    for (; done < ends.size() && ends[done].rows <= rows; ++done) waited_[ends[done].source] = now;
    ends.erase(ends.begin(), ends.begin() + static_cast<int64_t>(done));
  }

  // Where the rows of a source end in what a peer brings.
  struct SourceEnd {
    uint32_t source = 0;
    uint64_t rows = 0;
  };

  const RowExchange& x_;
  uint64_t* const waited_;
  executor::Pipes* const pipes_;
  const uint64_t number_;
  const uint32_t me_, ranks_;
  std::vector<uint32_t> via_;  // who brings the rows of each source
  std::vector<Range> hop_out_, hop_in_, out_, in_;
  std::vector<std::vector<SourceEnd>> source_ends_;  // by who brings them
  std::vector<bool> is_relayed_;
  uint64_t relayed_left_ = 0, started_ns_ = 0;
  bool moved_mine_ = false;
  std::vector<executor::Outgoing> sends_;
  std::vector<executor::Incoming> receives_;
};

}  // namespace

Status ThroughputProgram::Run(executor::Pipes* pipes, uint64_t number) {
  return ExchangeRun(exchange_, waited_, pipes, number).Go();
}

Status SumProgram::Run(executor::Pipes* pipes, uint64_t number) {
  const uint64_t bytes = exchange_.in.num_rows * exchange_.row_bytes;
  const auto answers = std::make_unique_for_overwrite<std::byte[]>(bytes);
  AdviseHugePages(answers.get(), bytes);
  RowExchange exchange = exchange_;
  exchange.in.rows = answers.get();
  if (Status status = CheckSum(exchange, sum_); !status.ok()) return status;
  if (Status status = ThroughputProgram(exchange, waited_).Run(pipes, number); !status.ok())
    return status;
  FoldRows(sum_.from, answers.get(), exchange.row_bytes / RowTypeBytes(sum_.from), sum_.table,
           sum_.width, sum_.to, sum_.rows);
  return Status::Ok();
}

}  // namespace uccl::moe
