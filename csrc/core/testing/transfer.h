// One message from end 0 of a Simulation to end 1.
#pragma once

#include "csrc/base/types.h"
#include "csrc/core/connection.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/simulation.h"

namespace uccl::core::testing {

inline void Start(Simulation* sim, TestMessage* m) {
  sim->end(1).PostRecv(sim->now(), m->info, m->target.body(), m->token);
  sim->end(0).Send(sim->now(), m->info, m->contents, m->token);
}
// True when the message arrives as it was sent, and both ends come to rest, each within `limit`.
inline bool Finish(Simulation* sim, TestMessage* m, Nanos limit = FromMillis(600'000)) {
  const auto at_rest = [sim] { return sim->end(0).Drained() && sim->end(1).Drained(); };
  return sim->RunUntilEvent(1, EventKind::kRecvDone, m->token, sim->now() + limit) &&
         m->Arrived() && sim->RunUntil(at_rest, sim->now() + limit);
}

}  // namespace uccl::core::testing
