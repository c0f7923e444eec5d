// See row_ranges.h.
#include "csrc/moe/row_ranges.h"

#include <numeric>
#include <span>

#include "csrc/moe/refuse.h"

namespace uccl::moe {
namespace {

// Without `offsets` they lie one after the other.
Result<std::vector<Range>> RangesOf(const std::span<const int32_t>* offsets,
                                    std::span<const int32_t> counts, uint64_t entries,
                                    uint32_t ranks, const char* what) {
  if (counts.size() != ranks || (offsets != nullptr && offsets->size() != ranks)) {
    return InvalidRows(std::to_string(counts.size()) + " counts of rows to " + what + " for " +
                       std::to_string(ranks) + " ranks");
  }
  std::vector<Range> ranges;
  int64_t end = 0;
  for (uint32_t r = 0; r < ranks; ++r) {
    const int64_t first = offsets == nullptr ? end : (*offsets)[r];
    end = first + counts[r];
    if (first < 0 || counts[r] < 0 || static_cast<uint64_t>(end) > entries) {
      return InvalidRows(std::to_string(counts[r]) + " rows to " + what + " from " +
                         std::to_string(first) + " on, but " + std::to_string(entries) +
                         " entries say which");
    }
    ranges.push_back({static_cast<uint64_t>(first), static_cast<uint64_t>(counts[r])});
  }
  return ranges;
}

Status CheckIndex(std::span<const int32_t> index, uint64_t rows, const char* what) {
  const auto outside = FindOutside(index, rows);
  if (!outside) return Status::Ok();
  return InvalidRows(std::string("a row to ") + what + " lies outside of its buffer: " +
                     std::to_string(index[*outside]) + " of " + std::to_string(rows) + " rows");
}

}  // namespace

Status InvalidRows(const std::string& why) { return Refuse(StatusCode::kInvalidArgument, why); }

Result<std::vector<Range>> RangesOf(const SentRows& rows, uint32_t ranks) {
  return RangesOf(&rows.offsets, rows.counts, rows.entries, ranks, "send");
}
Result<std::vector<Range>> RangesOf(const PlacedRows& rows, uint32_t ranks) {
  return RangesOf(nullptr, rows.counts, rows.entries, ranks, "receive");
}

Status CheckRows(const RowExchange& x) {
  const auto table = [](const int32_t* values, uint64_t count) {
    return std::span<const int32_t>(values, values == nullptr ? 0 : count);
  };
  if (Status s = CheckIndex(table(x.out.index, x.out.entries), x.out.num_rows, "send"); !s.ok())
    return s;
  if (x.out.index == nullptr && x.out.entries > x.out.num_rows)
    return InvalidRows("more rows to send than there are");
  if (x.in.places == nullptr && x.in.entries > x.in.num_rows)
    return InvalidRows("more rows to receive than there is room for");
  if (Status s =
          CheckIndex(table(x.in.places, x.in.entries * x.in.width), x.in.num_rows, "receive");
      !s.ok()) {
    return s;
  }
  return CheckIndex(table(x.vacant, x.num_vacant), x.in.num_rows, "zero");
}

Status CheckSum(const RowExchange& x, const RowSum& sum) {
  const auto come =
      static_cast<uint64_t>(std::accumulate(x.in.counts.begin(), x.in.counts.end(), int64_t{0}));
  return CheckIndex(sum.table, come, "add");
}

}  // namespace uccl::moe
