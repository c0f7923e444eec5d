// Dispatch and combine in throughput mode: rows whose numbers both ends know, in pieces through the
// pipes of a rank's stream (executor/pipes.h).
//
//   rows of `from` --pack, by index--> outbox --write_count--> inbox --unpack--> rows of `to`
//
// A row goes from the tokens straight into the memory that a proxy sends from, and from where it
// landed straight to where the layout wants it, perhaps to several places: there is no buffer
// between. Pieces are as large as pipes have them, rows are cut where a piece ends; as many pieces
// are under way to each rank as its pipe has slots.
//
// In two levels a message to a rank of the own host is made of rows that other hosts send, and
// leaves piece by piece as they come (Outgoing::ready):
//
//   from --first leg--> relayed, at the gateway of the source on each host --second leg--> to
//
// Counts come first: each rank has those of all pairs that concern it before it sends, and every
// piece says the size of its message, so ranks that disagree get an error and no data. A message
// without rows is sent as well, for that reason.
//
// Leaves to others: which rows (jax_uccl/_src/moe/plan.py).
#pragma once

#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/executor/rank_stream.h"
#include "csrc/moe/row_exchange.h"

namespace uccl::moe {

class ThroughputProgram final : public executor::Program {
 public:
  // All buffers stay valid until it has run. `waited`: [ranks], nanoseconds from the start until
  // the last row of each source was in place.
  ThroughputProgram(const RowExchange& exchange, uint64_t* waited)
      : exchange_(exchange), waited_(waited) {}
  Status Run(executor::Pipes* pipes, uint64_t number) override;

 private:
  const RowExchange exchange_;
  uint64_t* const waited_;
};

// An exchange into memory of its own, and the sums of what came (rows.h).
class SumProgram final : public executor::Program {
 public:
  // Likewise; `exchange.in.rows` is not looked at.
  SumProgram(const RowExchange& exchange, const RowSum& sum, uint64_t* waited)
      : exchange_(exchange), sum_(sum), waited_(waited) {}
  Status Run(executor::Pipes* pipes, uint64_t number) override;

 private:
  const RowExchange exchange_;
  const RowSum sum_;
  uint64_t* const waited_;
};

}  // namespace uccl::moe
