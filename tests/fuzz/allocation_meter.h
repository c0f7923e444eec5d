// How much memory a piece of code holds: counts what operator new hands out while a Metered lives,
// until it is given back, whenever that is. Linking this replaces operator new.
#pragma once

#include <cstdint>

namespace uccl::fuzz {

// Allocations of this thread count while one lives. They do not nest.
class Metered final {
 public:
  Metered();
  ~Metered();
  Metered(const Metered&) = delete;
  Metered& operator=(const Metered&) = delete;
};
// What was counted and not yet freed.
int64_t MeteredBytes();

}  // namespace uccl::fuzz
