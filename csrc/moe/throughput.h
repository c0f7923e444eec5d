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
// Leaves to others: which rows (jax_uccl/_src/moe/plan.py), and adding up what came back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/executor/rank_stream.h"

namespace uccl::moe {

// What leaves: entry n is row index[n] of `rows`. Those for rank r are counts[r] from offsets[r]
// on.
struct SentRows {
  const std::byte* rows = nullptr;
  uint64_t num_rows = 0;
  const int32_t* index = nullptr;  // [entries]; null: n itself
  uint64_t entries = 0;
  std::span<const int32_t> offsets, counts;  // for each rank
};

// What comes: entry n becomes rows places[n, 0], places[n, 1], ... of `rows`, those that are not
// negative. Entries of source 0 come first, then those of 1.
struct PlacedRows {
  std::byte* rows = nullptr;
  uint64_t num_rows = 0;
  const int32_t* places = nullptr;  // [entries, width]; null: n itself
  uint64_t entries = 0;
  uint32_t width = 1;
  std::span<const int32_t> counts;  // of each source
};

// The first of two levels. Equal on all ranks but for the rows.
struct RelayRows {
  std::span<const int32_t> hosts;     // of each rank
  std::span<const int32_t> gateways;  // [ranks, hosts]: who takes a rank's rows for a host, there
  uint32_t num_hosts = 0;
  SentRows out;   // this rank's, to gateways
  PlacedRows in;  // of those that this rank is the gateway of; `places` null
};

struct RowExchange {
  uint64_t row_bytes = 0;
  // Without a relay from this rank to all, else from it to its host; then `out.rows` is
  // `relay->in.rows`.
  SentRows out;
  // By the rank that a row belongs to, also where a gateway brings it. In two levels the rows that
  // one gateway brings must follow each other.
  PlacedRows in;
  std::optional<RelayRows> relay;
  const int32_t* vacant = nullptr;  // [num_vacant]: rows of in.rows that are zeroed; negative: none
  uint64_t num_vacant = 0;
};

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

}  // namespace uccl::moe
