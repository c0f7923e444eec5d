// One rank's ends of the messages of a ragged exchange whose bytes are no slices of its operand and
// result: rows by index, rows that land in several places, rows that are only added up
// (moe/row_ends.h).
//
//   Begin --> { Outgoing, Landing, OnReceived, Take } in any order --> Finish, all parts
//
// Ranks of one process exchange in one step, Take, from where the source has its bytes to where the
// target wants them. Between processes a message travels as bytes one after the other.
//
// Threads: Begin, Outgoing and Landing on the one that brings the call; Take on any, and OnReceived
// on that of the engine, of different members at the same time; Finish on any, its parts at the
// same time, after all that came before. Buffers stay valid until the call is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/collectives/scratch_pool.h"

namespace uccl::coll {

class RaggedEnds {
 public:
  virtual ~RaggedEnds() = default;
  // `remote[m]`: member m lives in another process.
  virtual void Begin(ScratchPool* pool, const std::vector<bool>& remote) = 0;
  // What goes to a remote member.
  virtual const std::byte* Outgoing(uint32_t member) = 0;
  // Where what comes from a remote member is to lie, and that it does.
  virtual std::byte* Landing(uint32_t member) = 0;
  virtual void OnReceived(uint32_t member) = 0;
  // Takes what `theirs`, the ends of the local member `member`, have for this rank, which is their
  // member `me`. Both were made by the same call site; the sizes agree.
  virtual void Take(uint32_t member, const RaggedEnds& theirs, uint32_t me) = 0;

  // Whether there is anything to do when all of it is there, alike on all ranks: then no operand
  // may go before.
  virtual bool finishes() const = 0;
  // How many units that is, which may be done by different threads, and the bytes they touch.
  virtual uint64_t finish_units() const = 0;
  virtual uint64_t finish_bytes() const = 0;
  virtual void Finish(uint64_t begin, uint64_t end) = 0;
};

}  // namespace uccl::coll
