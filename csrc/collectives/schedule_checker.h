// Proves that the schedules of all processes together do what was asked, by running them with
// symbols in place of data: an element is "element 3 of rank 5's input", or an addition of two such
// terms. For tests; takes time and memory per element.
//
// Checked: every rank ends with the right term in every element of its output, where a reduction
// must have the tree of reduce.h unless its order is free, and rounds a 16-bit type once, at the
// end; every message that is sent in a stage is received in the same stage by the process it names,
// under a name that no other has; slices lie in their buffers; nothing is read before it is
// written; within a stage nothing is written that is read or written by another item. Since a stage
// waits for nothing but messages of the same stage, such schedules cannot get stuck, and their
// result does not depend on the order in which messages arrive.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/collectives/schedule.h"

namespace uccl::coll {

// Empty when all is well, otherwise what is wrong, where. `make` gives the schedule of a process of
// the group.
std::string CheckSchedules(const PlanRequest& request, const std::vector<Member>& group,
                           const std::function<Schedule(ProcessId)>& make);

}  // namespace uccl::coll
