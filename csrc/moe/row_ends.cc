// See row_ends.h.
#include "csrc/moe/row_ends.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "csrc/base/copy.h"
#include "csrc/executor/host_kernels.h"

namespace uccl::moe {

Result<std::shared_ptr<RowEnds>> RowEnds::Make(const RowExchange& exchange,
                                               const std::optional<RowSum>& sum, uint32_t ranks,
                                               uint64_t* waited) {
  if (exchange.row_bytes == 0) return InvalidRows("rows without bytes");
  auto out = RangesOf(exchange.out, ranks);
  if (!out.ok()) return out.status();
  auto in = RangesOf(exchange.in, ranks);
  if (!in.ok()) return in.status();
  if (Status status = CheckRows(exchange); !status.ok()) return status;
  if (sum.has_value()) {
    if (Status status = CheckSum(exchange, *sum); !status.ok()) return status;
  }
  std::shared_ptr<RowEnds> ends(new RowEnds(exchange, sum, waited));
  ends->out_ = out.value(), ends->in_ = in.value();
  return ends;
}

std::vector<coll::Call::RaggedPart> RowEnds::Sizes() const {
  std::vector<coll::Call::RaggedPart> sizes(out_.size());
  for (size_t r = 0; r < sizes.size(); ++r) {
    sizes[r].send_bytes = out_[r].count * x_.row_bytes;
    sizes[r].receive_bytes = in_[r].count * x_.row_bytes;
  }
  return sizes;
}

// Null: a row of zeros.
const std::byte* RowEnds::Sent(uint64_t entry) const {
  if (x_.out.index == nullptr) return x_.out.rows + entry * x_.row_bytes;
  const int32_t row = x_.out.index[entry];
  return row < 0 ? nullptr : x_.out.rows + static_cast<uint64_t>(row) * x_.row_bytes;
}

void RowEnds::Begin(coll::ScratchPool* pool, const std::vector<bool>& remote) {
  begun_ns_ = executor::HostClockNs();
  uint64_t packed = 0, landed = 0, come = 0;
  packed_at_.resize(out_.size()), landed_at_.resize(in_.size());
  for (size_t r = 0; r < remote.size(); ++r) {
    packed_at_[r] = packed, landed_at_[r] = landed;
    come += in_[r].count;
    if (!remote[r]) continue;
    packed += out_[r].count * x_.row_bytes, landed += in_[r].count * x_.row_bytes;
  }
  stream_ = !sum_.has_value() && come * x_.row_bytes >= kStreamBytes;
  if (packed > 0 && x_.out.index != nullptr) packed_ = pool->Take(packed);
  if (lands_in_place()) return Zero();
  if (landed > 0) landed_ = pool->Take(landed);
  answers_.resize(come);
  for (size_t r = 0; r < remote.size(); ++r) {
    for (uint64_t i = 0; remote[r] && i < in_[r].count; ++i) {
      const uint64_t entry = in_[r].first + i;
      answers_[entry] = landed_.data() + landed_at_[r] + i * x_.row_bytes;
      if (!sum_.has_value()) remote_.push_back(entry);
    }
  }
  Zero();
}

// The rows in which nothing comes.
void RowEnds::Zero() {
  const std::span<const int32_t> vacant(x_.vacant, x_.num_vacant);
  for (size_t n = 0; n < vacant.size();) {
    size_t end = n + 1;
    if (vacant[n] >= 0) {
      while (end < vacant.size() && vacant[end] == vacant[end - 1] + 1) ++end;
      std::memset(x_.in.rows + static_cast<uint64_t>(vacant[n]) * x_.row_bytes, 0,
                  (end - n) * x_.row_bytes);
    }
    n = end;
  }
}

const std::byte* RowEnds::Outgoing(uint32_t member) {
  const Range& range = out_[member];
  if (x_.out.index == nullptr) return x_.out.rows + range.first * x_.row_bytes;
  std::byte* const to = packed_.data() + packed_at_[member];
  // The peer reads it in a moment.
  TakeRows(x_.out.rows, x_.row_bytes, {x_.out.index + range.first, range.count}, /*fill=*/true,
           /*stream=*/range.count * x_.row_bytes >= kStreamBytes, to);
  return to;
}

std::byte* RowEnds::Landing(uint32_t member) {
  if (lands_in_place()) return x_.in.rows + in_[member].first * x_.row_bytes;
  return landed_.data() + landed_at_[member];
}

void RowEnds::OnReceived(uint32_t member) { waited_[member] = executor::HostClockNs() - begun_ns_; }

void RowEnds::Take(uint32_t member, const coll::RaggedEnds& theirs, uint32_t me) {
  const auto& source = static_cast<const RowEnds&>(theirs);  // of the same call site
  const Range &from = source.out_[me], &to = in_[member];
  if (lands_in_place() && source.x_.out.index != nullptr) {
    TakeRows(source.x_.out.rows, x_.row_bytes, {source.x_.out.index + from.first, from.count},
             /*fill=*/true, stream_, x_.in.rows + to.first * x_.row_bytes);
  } else if (lands_in_place()) {
    CopyBytes(x_.in.rows + to.first * x_.row_bytes, source.Sent(from.first),
              from.count * x_.row_bytes);
  } else {
    for (uint64_t i = 0; i < from.count; ++i) {
      const std::byte* row = source.Sent(from.first + i);
      if (sum_.has_value()) {
        answers_[to.first + i] = row;
      } else {
        Place(to.first + i, row);
      }
    }
    if (stream_) StreamFence();
  }
  OnReceived(member);
}

void RowEnds::Place(uint64_t entry, const std::byte* row) {
  const int32_t* places = x_.in.places + entry * x_.in.width;
  for (uint32_t w = 0; w < x_.in.width; ++w) {
    if (places[w] < 0) continue;
    std::byte* const to = x_.in.rows + static_cast<uint64_t>(places[w]) * x_.row_bytes;
    if (row == nullptr) {
      std::memset(to, 0, x_.row_bytes);
    } else {
      (stream_ ? &StreamBytes : &CopyBytes)(to, row, x_.row_bytes);
    }
  }
}

uint64_t RowEnds::finish_units() const {
  return sum_.has_value() ? sum_->table.size() / sum_->width : remote_.size();
}

uint64_t RowEnds::finish_bytes() const {
  if (!sum_.has_value()) return remote_.size() * x_.row_bytes * (1 + x_.in.width);
  return answers_.size() * x_.row_bytes + finish_units() * x_.row_bytes;
}

void RowEnds::Finish(uint64_t begin, uint64_t end) {
  if (!sum_.has_value()) {
    for (uint64_t i = begin; i < end; ++i) Place(remote_[i], answers_[remote_[i]]);
    if (stream_) StreamFence();
    return;
  }
  const size_t elements = x_.row_bytes / RowTypeBytes(sum_->from);
  const size_t width = sum_->width;
  FoldRows(sum_->from, answers_, elements,
           sum_->table.subspan(begin * width, (end - begin) * width), width, sum_->to,
           sum_->rows + begin * elements * RowTypeBytes(sum_->to));
}

}  // namespace uccl::moe
