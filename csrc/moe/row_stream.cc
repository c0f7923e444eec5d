// See row_stream.h.
#include "csrc/moe/row_stream.h"

#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "csrc/cuda/rows.h"
#include "csrc/moe/refuse.h"

namespace uccl::moe {
RowStream::RowStream(const RowExchange& exchange)
    : row_bytes_(exchange.row_bytes),
      packed_rows_(exchange.out.index != nullptr ? exchange.out.entries : 0),
      landed_rows_(exchange.in.places != nullptr ? exchange.in.entries : 0) {}

Status RowStream::Open(const Lane& lane) {
  lane_ = lane;
  const uint32_t ranks = lane.pipes->ranks();
  uint64_t end = 0;
  const auto place = [&](uint64_t bytes) {
    const uint64_t at = end;
    end = (end + bytes + 255) / 256 * 256;
    return at;
  };
  const uint64_t messages_at = place(2 * ranks * sizeof(cuda::PipeMessage));
  const uint64_t lines_at = place(2 * ranks * sizeof(cuda::PipeLine));
  const uint64_t missing_at = place(sizeof(int32_t));
  const uint64_t uploaded = end;
  const uint64_t addresses_at = place(2 * ranks * sizeof(std::byte*));
  const uint64_t packed_at = place(packed_rows_ * row_bytes_);
  const uint64_t landed_at = place(landed_rows_ * row_bytes_);
  auto memory = executor::AllocateOn(*lane.device, end);
  if (!memory.ok()) return memory.status();
  memory_ = std::move(memory.value());
  std::byte* const at = memory_.get();
  messages_ = reinterpret_cast<cuda::PipeMessage*>(at + messages_at);
  addresses_ = reinterpret_cast<std::byte**>(at + addresses_at);
  lines_ = reinterpret_cast<cuda::PipeLine*>(at + lines_at);
  missing_ = reinterpret_cast<const int32_t*>(at + missing_at);
  packed_ = at + packed_at, landed_ = at + landed_at;

  // A message to each rank and one from each, this one too: their sizes are as little known.
  std::vector<cuda::PipeMessage> messages;
  std::vector<cuda::PipeLine> lines;
  for (uint32_t i = 0; i < 2 * ranks; ++i) {
    messages.push_back({0, {lane.tag, 0, 0}});
    lines.push_back({i % ranks, i < ranks ? 1u : 0u, i, 1, 0, 0});
  }
  constexpr int32_t kMissing = -1;
  std::vector<std::byte> image(uploaded);
  std::memcpy(image.data() + messages_at, messages.data(), messages.size() * sizeof(messages[0]));
  std::memcpy(image.data() + lines_at, lines.data(), lines.size() * sizeof(lines[0]));
  std::memcpy(image.data() + missing_at, &kMissing, sizeof(kMissing));
  if (Status s = lane.device->upload(at, image.data(), image.size()); !s.ok()) return s;
  auto shared = executor::AllocatePinned(*lane.device, sizeof(Faults));
  if (!shared.ok()) return shared.status();
  shared_ = std::move(shared.value());
  faults_ = new (shared_.get()) Faults();
  return Status::Ok();
}

Status RowStream::Trouble() const {
  // Relaxed: nothing is behind these words.
  const auto look = [](uint64_t& word) {
    return std::atomic_ref(word).load(std::memory_order_relaxed);
  };
  const auto outside = [](const char* what, uint64_t n) {
    return Refuse(StatusCode::kInvalidArgument, std::string(what) + " " + std::to_string(n) +
                                                    " lies outside of the rows that there are");
  };
  const uint32_t ranks = lane_.pipes->ranks();
  if (const uint64_t n = look(faults_->index); n != cuda::kNoFault)
    return outside("the row to send of entry", n);
  if (const uint64_t n = look(faults_->counts); n != cuda::kNoFault)
    return outside(n < ranks ? "what is sent to rank" : "what comes from rank", n % ranks);
  if (const uint64_t n = look(faults_->places); n != cuda::kNoFault)
    return outside("the place of what comes, number", n);
  return Status::Ok();
}

Status RowStream::Enqueue(cuda::Stream stream, const RowExchange& x, uint32_t* waited) const {
  const cuda::Device& device = *lane_.device;
  const uint32_t ranks = lane_.pipes->ranks();
  if (x.out.counts.size() != ranks || x.out.offsets.size() != ranks ||
      x.in.counts.size() != ranks) {
    return Refuse(StatusCode::kInvalidArgument,
                  "counts of rows for other than " + std::to_string(ranks) + " ranks");
  }
  if (x.num_vacant > std::numeric_limits<uint32_t>::max())
    return Refuse(StatusCode::kUnsupported, "2^32 rows or more to be zeroed");
  cuda::ResolveParams begin;
  begin.mark = lane_.begun;
  if (Status s = device.resolve(begin, stream); !s.ok()) return s;

  cuda::MoveRowsParams move;
  move.from_stride = move.to_stride = move.channels = row_bytes_;
  cuda::MoveRowsParams zero = move;
  zero.from = x.in.rows, zero.from_index = missing_, zero.from_rows = 1;
  zero.fill_missing = true;
  zero.to = x.in.rows, zero.to_rows = x.in.num_rows, zero.to_index = x.vacant;
  zero.moves = x.num_vacant, zero.repeat = static_cast<uint32_t>(x.num_vacant);
  zero.fault = &faults_->places;
  if (x.num_vacant > 0) {
    if (Status s = device.move_rows(zero, stream); !s.ok()) return s;
  }
  cuda::MoveRowsParams pack = move;
  pack.from = x.out.rows, pack.from_rows = x.out.num_rows, pack.from_index = x.out.index;
  pack.to = packed_, pack.to_rows = pack.moves = packed_rows_;
  pack.fill_missing = true;  // nothing of what lay there before travels
  pack.fault = &faults_->index;
  if (packed_rows_ > 0) {
    if (Status s = device.move_rows(pack, stream); !s.ok()) return s;
  }

  cuda::RaggedParams sizes;
  sizes.send_offsets = x.out.offsets.data(), sizes.send_sizes = x.out.counts.data();
  sizes.receive_sizes = x.in.counts.data();
  sizes.ranks = ranks, sizes.row_bytes = row_bytes_;
  sizes.from_rows = packed_rows_ > 0 ? packed_rows_ : x.out.num_rows;
  sizes.to_rows = landed_rows_ > 0 ? landed_rows_ : x.in.num_rows;
  // Messages to send are only read.
  sizes.from = packed_rows_ > 0 ? packed_ : const_cast<std::byte*>(x.out.rows);
  sizes.to = landed_rows_ > 0 ? landed_ : x.in.rows;
  sizes.messages = messages_, sizes.addresses = addresses_;
  sizes.fault = &faults_->counts;
  if (Status s = device.ragged(sizes, stream); !s.ok()) return s;

  cuda::ExchangeParams exchange = lane_.pipes->device_params();
  exchange.addresses = addresses_, exchange.messages = messages_;
  exchange.lines = lines_, exchange.line_count = 2 * ranks;
  exchange.waited = waited;
  if (Status s = device.exchange(exchange, stream); !s.ok()) return s;

  cuda::MoveRowsParams unpack = move;
  unpack.from = landed_, unpack.from_rows = landed_rows_, unpack.repeat = x.in.width;
  unpack.to = x.in.rows, unpack.to_rows = x.in.num_rows, unpack.to_index = x.in.places;
  unpack.moves = landed_rows_ * x.in.width;
  unpack.fault = &faults_->places;
  if (landed_rows_ == 0) return Status::Ok();
  return device.move_rows(unpack, stream);
}

}  // namespace uccl::moe
