// Which entries belong to which rank, and whether what a rank says of its rows holds together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/moe/row_exchange.h"

namespace uccl::moe {

// Entries of one end of a message.
struct Range {
  uint64_t first = 0, count = 0;
};

// Those of each rank, or why there are none.
Result<std::vector<Range>> RangesOf(const SentRows& rows, uint32_t ranks);
Result<std::vector<Range>> RangesOf(const PlacedRows& rows, uint32_t ranks);

// That each row exists: of the operand, of the result, and of those that come.
Status CheckRows(const RowExchange& exchange);
Status CheckSum(const RowExchange& exchange, const RowSum& sum);

Status InvalidRows(const std::string& why);

}  // namespace uccl::moe
