// The ends of a row exchange in memory (collectives/ragged_ends.h): within a process rows go from
// the operand of their source straight to where the target wants them.
//
//   to places: one copy for each row, or for each place that it has
//   to a sum:  none: the target adds up the rows where the sources have them
//
// Between processes the rows for a rank are packed into scratch memory, unless they lie as they are
// to travel, and come to where they belong if they lie there as they come; else into scratch
// memory, from where the end of the exchange places or adds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/collectives/operation.h"
#include "csrc/collectives/ragged_ends.h"
#include "csrc/moe/row_exchange.h"
#include "csrc/moe/row_ranges.h"

namespace uccl::moe {

class RowEnds final : public coll::RaggedEnds {
 public:
  // kInvalidArgument for tables that do not fit. All buffers stay valid until the call is over;
  // with `sum` `exchange.in.rows` is not looked at. `waited`: [ranks], nanoseconds from Begin until
  // the last row of each source was there. There is no relay.
  static Result<std::shared_ptr<RowEnds>> Make(const RowExchange& exchange,
                                               const std::optional<RowSum>& sum, uint32_t ranks,
                                               uint64_t* waited);

  // The sizes of the messages.
  std::vector<coll::Call::RaggedPart> Sizes() const;

  void Begin(coll::ScratchPool* pool, const std::vector<bool>& remote) override;
  const std::byte* Outgoing(uint32_t member) override;
  std::byte* Landing(uint32_t member) override;
  void OnReceived(uint32_t member) override;
  void Take(uint32_t member, const coll::RaggedEnds& theirs, uint32_t me) override;
  bool finishes() const override { return sum_.has_value() || x_.in.places != nullptr; }
  uint64_t finish_units() const override;
  uint64_t finish_bytes() const override;
  void Finish(uint64_t begin, uint64_t end) override;

 private:
  RowEnds(const RowExchange& exchange, const std::optional<RowSum>& sum, uint64_t* waited)
      : x_(exchange), sum_(sum), waited_(waited) {}
  const std::byte* Sent(uint64_t entry) const;
  void Zero();
  void Place(uint64_t entry, const std::byte* row);
  bool lands_in_place() const { return !sum_.has_value() && x_.in.places == nullptr; }

  const RowExchange x_;
  const std::optional<RowSum> sum_;
  uint64_t* const waited_;
  std::vector<Range> out_, in_;  // by rank
  bool stream_ = false;          // the result leaves the caches before anybody reads it
  uint64_t begun_ns_ = 0;
  // Written by Begin alone.
  coll::ScratchPool::Buffer packed_, landed_;
  std::vector<uint64_t> packed_at_, landed_at_;  // by rank
  std::vector<uint64_t> remote_;                 // entries that others place or add in the end
  // Of each entry to add or to place in the end. Those of a rank are written when it is taken.
  std::vector<const std::byte*> answers_;
};

}  // namespace uccl::moe
