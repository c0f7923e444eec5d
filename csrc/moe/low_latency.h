// Dispatch and combine in low-latency mode: which kernels run, over which rows. No sizes travel
// before the rows do.
//
//   dispatch  x, a row for each token --pack, perhaps to fp8--> staging --> slots, by source rank
//             and number of the copy --unpack--> rows by source rank, then number
//   combine   results --pack--> staging --> slots of the owner, one for each of its choices
//             --sum in the order of the choices--> a row for each token
//
// A copy may carry words beside its row (`tags`): the token, its choices there, their weights. So
// the receiver needs to know nothing of the sender's routing. Where a combine sends each row is up
// to its caller, who has these words.
//
// Pure but for the kernels: `Runner` has Run(params) for those of csrc/cuda, which starts one and
// returns what starting it gave. On a stream they follow each other, and what was recorded of them
// may be repeated. Whether they found anything wrong, SlotExchange::Trouble says. On an error of
// this file nothing more is started, and the exchange is in no state to be used again: the caller
// fails the region.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/cuda/fold.h"
#include "csrc/cuda/rows.h"
#include "csrc/moe/slot_exchange.h"

namespace uccl::moe {

struct Dispatch {
  // [tokens, channels] of `element`; `cast` is how rows travel: kNone, kToFp8 or kToFp8PowerOf2.
  const std::byte* x = nullptr;
  uint64_t x_stride = 0, tokens = 0, channels = 0;  // bytes; at most the layout's staging_rows
  cuda::Element element = cuda::Element::kU8;
  cuda::RowCast cast = cuda::RowCast::kNone;
  const int32_t* tags = nullptr;  // [tokens, tag_words]
  uint64_t tag_words = 0;
  // [tokens, width]: where copies go and their numbers there, from 0 on for each rank, as
  // cuda/route.h makes them; negative: nowhere.
  const int32_t* peers = nullptr;
  const int32_t* slots = nullptr;
  uint32_t width = 0;
  // [out_rows, ...]: rows by source rank, then number; zeros behind the last one. With
  // `dequantize` of `element`, else as they travelled.
  std::byte* out = nullptr;
  uint64_t out_stride = 0, out_rows = 0;
  bool dequantize = true;
  int32_t* out_tags = nullptr;  // [out_rows, tag_words]; zeros behind the last one
  uint32_t* waited = nullptr;   // [ranks], as in cuda/await_rows.h

  // Bytes of a copy on its way. Tags begin at a word's boundary behind the row.
  uint64_t wire_bytes() const {
    return cast == cuda::RowCast::kNone ? channels * cuda::ElementBytes(element)
                                        : cuda::Fp8RowBytes(channels);
  }
  uint64_t tag_offset() const { return (wire_bytes() + 3) / 4 * 4; }
  uint64_t row_bytes() const {
    return tag_words == 0 ? wire_bytes() : tag_offset() + 4 * tag_words;
  }
};

struct Combine {
  // Rows of y that are sent, [entries]; null: all of them in order. Entry i goes to slot slots[i]
  // of rank peers[i]; negative in any: nothing is sent.
  const std::byte* y = nullptr;
  uint64_t y_stride = 0, y_rows = 0, channels = 0;
  cuda::Element element = cuda::Element::kF32;  // kF16, kBF16 or kF32
  const int32_t* rows = nullptr;
  const int32_t* peers = nullptr;
  const int32_t* slots = nullptr;
  uint64_t entries = 0;  // at most the layout's staging_rows
  // What comes back: out[t] = sum of slots table[t, 0], table[t, 1], ... here, as cuda/fold.h.
  const int32_t* table = nullptr;  // [tokens, width]
  uint64_t tokens = 0;
  uint32_t width = 0;
  std::byte* out = nullptr;
  uint64_t out_stride = 0;
  cuda::Element out_element = cuda::Element::kF32;
  uint32_t* waited = nullptr;  // [ranks], as in cuda/await_rows.h

  uint64_t row_bytes() const { return channels * cuda::ElementBytes(element); }
};

// The exchange for all that can come of calls like these, in a region of its own. The sizes that it
// looks at are the same on all ranks.
SlotLayout LayoutOf(const Dispatch& dispatch, uint32_t ranks);
SlotLayout LayoutOf(const Combine& combine, uint32_t ranks);

// Whether the exchange has room for what these ask for.
Status CheckRoom(const SlotLayout& layout, uint64_t packed, uint64_t row_bytes, const char* op);

// Rows out of slots, and `more` rows of zeros behind them, for which there is no slot.
template <class Runner>
Status Unpack(Runner& runner, cuda::MoveRowsParams rows, uint64_t more) {
  if (Status s = runner.Run(rows); !s.ok() || more == 0) return s;
  rows.to += rows.moves * rows.to_stride;
  rows.to_rows = rows.moves = more;
  rows.from_index = nullptr, rows.from_rows = 0;  // so all are missing
  return runner.Run(rows);
}

template <class Runner>
Status Start(Runner& runner, const SlotExchange& exchange, const Dispatch& d) {
  const SlotLayout& layout = exchange.layout();
  if (Status s = CheckRoom(layout, d.tokens, d.row_bytes(), "moe.dispatch"); !s.ok()) return s;
  SlotExchange::Use use = exchange.MakeUse();
  if (Status s = runner.Run(use.begin); !s.ok()) return s;

  cuda::MoveRowsParams pack;
  pack.turn = use.turn, pack.to_turn = use.turn_bytes;
  pack.from = d.x, pack.from_rows = pack.moves = d.tokens, pack.from_stride = d.x_stride;
  pack.to = use.staging, pack.to_rows = layout.staging_rows, pack.to_stride = layout.stride();
  pack.channels = d.channels, pack.element = d.element, pack.cast = d.cast;
  if (Status s = runner.Run(pack); !s.ok()) return s;
  cuda::MoveRowsParams tags;
  tags.turn = use.turn, tags.to_turn = use.turn_bytes;
  tags.from = reinterpret_cast<const std::byte*>(d.tags);
  tags.from_rows = tags.moves = d.tokens, tags.from_stride = 4 * d.tag_words;
  tags.to = use.staging + d.tag_offset();
  tags.to_rows = layout.staging_rows, tags.to_stride = layout.stride();
  tags.channels = 4 * d.tag_words;
  if (d.tag_words > 0) {
    if (Status s = runner.Run(tags); !s.ok()) return s;
  }

  use.send.peers = d.peers, use.send.slots = d.slots;
  use.send.entries = d.tokens * d.width, use.send.width = d.width > 0 ? d.width : 1;
  use.send.row_bytes = d.row_bytes();
  use.send.slots_offset += use.send.rank * layout.most * layout.stride();  // this rank's at a peer
  use.send.num_slots = layout.most;
  if (Status s = runner.Run(use.send); !s.ok()) return s;

  const uint64_t rows = d.out_rows < layout.slots ? d.out_rows : layout.slots;
  use.wait.order_rows = rows, use.wait.waited = d.waited;
  if (Status s = runner.Run(use.wait); !s.ok()) return s;

  cuda::MoveRowsParams unpack;
  unpack.turn = use.turn, unpack.from_turn = use.turn_bytes;
  unpack.from = use.slots, unpack.from_index = use.wait.order;
  unpack.from_rows = layout.slots, unpack.from_stride = layout.stride();
  unpack.to = d.out, unpack.to_rows = unpack.moves = rows, unpack.to_stride = d.out_stride;
  unpack.fill_missing = true;
  if (d.cast != cuda::RowCast::kNone && d.dequantize) {
    unpack.channels = d.channels, unpack.element = d.element;
    unpack.cast = cuda::RowCast::kFromFp8;
  } else {
    unpack.channels = d.wire_bytes();
  }
  if (Status s = Unpack(runner, unpack, d.out_rows - rows); !s.ok()) return s;
  if (d.tag_words == 0 || d.out_tags == nullptr) return Status::Ok();
  unpack.from = use.slots + d.tag_offset();
  unpack.to = reinterpret_cast<std::byte*>(d.out_tags), unpack.to_stride = 4 * d.tag_words;
  unpack.channels = 4 * d.tag_words;
  unpack.element = cuda::Element::kU8, unpack.cast = cuda::RowCast::kNone;
  return Unpack(runner, unpack, d.out_rows - rows);
}

template <class Runner>
Status Start(Runner& runner, const SlotExchange& exchange, const Combine& c) {
  const SlotLayout& layout = exchange.layout();
  if (Status s = CheckRoom(layout, c.entries, c.row_bytes(), "moe.combine"); !s.ok()) return s;
  SlotExchange::Use use = exchange.MakeUse();
  if (Status s = runner.Run(use.begin); !s.ok()) return s;

  cuda::MoveRowsParams pack;
  pack.turn = use.turn, pack.to_turn = use.turn_bytes;
  pack.from = c.y, pack.from_index = c.rows, pack.from_rows = c.y_rows;
  pack.from_stride = c.y_stride, pack.moves = c.entries;
  pack.to = use.staging, pack.to_rows = layout.staging_rows, pack.to_stride = layout.stride();
  pack.channels = c.row_bytes();
  if (Status s = runner.Run(pack); !s.ok()) return s;

  use.send.peers = c.peers, use.send.slots = c.slots, use.send.entries = c.entries;
  use.send.row_bytes = c.row_bytes();
  if (Status s = runner.Run(use.send); !s.ok()) return s;

  use.wait.order = nullptr, use.wait.waited = c.waited;
  if (Status s = runner.Run(use.wait); !s.ok()) return s;

  cuda::FoldRowsParams fold;
  fold.turn = use.turn, fold.from_turn = use.turn_bytes;
  fold.from = use.slots, fold.from_rows = layout.slots, fold.from_stride = layout.stride();
  fold.table = c.table, fold.rows = c.tokens, fold.width = c.width;
  fold.to = c.out, fold.to_stride = c.out_stride;
  fold.channels = c.channels, fold.from_element = c.element, fold.to_element = c.out_element;
  return runner.Run(fold);
}

}  // namespace uccl::moe
