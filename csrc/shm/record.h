// What two processes say to each other through the rings of one host.
//
// A message that is not large is sent at once: in one record, or its first part with the
// description and the rest in fragments. A large one is offered by a description and fetched by the
// receiver: in one copy straight from the sender's memory, or, where the kernel forbids that, in
// fragments through the ring.
//
//   sender                                  receiver
//   kMessage info, bytes          ->        copied into the buffer, or kept until one is posted
//   kFragment offset, bytes       ->        until all that `info` speaks of are there
//   kOffer   info, address        ->        waits for its buffer, then
//                                 <- kDone      it has read the memory (one copy)
//                                 <- kWant      it asks for the bytes instead
//   kFragment offset, bytes       ->        likewise
//                                 <- kRefused   its buffer has another digest or size; `info` is
//                                 its
//                                               own
//                                 <- kDropped   it will not take it (the operation failed there)
//   kWithdraw                     ->        please stop; answered by kDone or kDropped, whichever
//                                           comes first, and then the memory is the sender's again.
//                                           Of one in fragments: no more of them come
//   kControl text                 ->        handed to the user of the other side
//                                 <- kDone      who has seen it
//   kLeaving                      ->        the last record: the sender has shut down in order
//
// `id` numbers the offers, the messages in several records and the controls of one direction, from
// 1. Records between two processes keep their order. Messages, offers and fragments are read when
// the receiver waits for something of the sender; all other records, and puts, are urgent.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "csrc/base/types.h"
#include "csrc/core/message.h"

namespace uccl::shm {

enum class RecordKind : uint32_t {
  kPadding = 0,  // of the ring itself
  kMessage,
  kOffer,
  kDone,
  kWant,
  kFragment,
  kRefused,
  kDropped,
  kWithdraw,
  kControl,
  kLeaving,
};

// core::MessageInfo as it lies in a record; both processes run on one machine, so in its byte
// order.
struct RecordInfo {
  uint64_t tag_hi = 0, tag_lo = 0, digest = 0, size_bytes = 0;
  std::array<std::byte, 32> note{};
};
static_assert(sizeof(RecordInfo) == 64);

struct OfferBody {
  RecordInfo info;
  uint64_t address = 0;  // in the sender's memory
};
struct FragmentBody {
  uint64_t offset = 0;  // the bytes follow
};

inline RecordInfo ToRecord(const core::MessageInfo& info) {
  return {info.tag.hi, info.tag.lo, info.digest, info.size_bytes, info.note};
}
inline core::MessageInfo FromRecord(const RecordInfo& record) {
  core::MessageInfo info;
  info.tag = {record.tag_hi, record.tag_lo};
  info.digest = record.digest;
  info.size_bytes = record.size_bytes;
  info.note = record.note;
  return info;
}

}  // namespace uccl::shm
