// Rows whose numbers both ends know, between all ranks: what each of them says of its part, whoever
// moves them (throughput.h, row_ends.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "csrc/moe/rows.h"

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

// What becomes of rows that came, instead of places: row t of the result is the sum of the entries
// table[t * width + j] in the order of j, those that are not negative (rows.h).
struct RowSum {
  std::span<const int32_t> table;
  uint32_t width = 1;
  RowType from{}, to{};
  std::byte* rows = nullptr;  // a row for each of the table
};

}  // namespace uccl::moe
