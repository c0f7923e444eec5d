// Which receives need no memory of their own, because what comes is read once, by a reduction.
#pragma once

#include "csrc/collectives/schedule.h"

namespace uccl::coll {

// Sets Transfer::read_once of all receives.
void MarkReadOnce(Schedule* schedule);

}  // namespace uccl::coll
