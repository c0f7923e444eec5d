// The exchange of throughput.h in one level, on a stream of a device: the launches of one call
// site, which may be recorded into a graph and repeated by it.
//
//   rows of `from` --move_rows, by index--> packed --exchange, through pipes--> landed
//   landed --move_rows, to places--> rows of `to`
//
// Counts are data of the device: a kernel makes messages of them (cuda/ragged.h). Where all rows
// are meant as they lie, there is no copy on that side. On the host rows go straight between pipes
// and their places; here a kernel packs whole pieces, which wants them to lie one after the other.
//
// Threads: as executor/stream_program.h; Enqueue by one at a time for each stream.
#pragma once

#include <cstdint>

#include "csrc/executor/device_memory.h"
#include "csrc/executor/stream_program.h"
#include "csrc/moe/throughput.h"

namespace uccl::moe {

class RowStream final : public executor::StreamProgram {
 public:
  // That of exchanges like this one, of which only sizes are looked at.
  explicit RowStream(const RowExchange& exchange);

  Status Open(const Lane& lane) override;
  bool uses_pipes() const override { return true; }
  const executor::SideRegion& side() const override { return lane_.pipes->own(); }
  Status Trouble() const override;
  bool HasToReceive(uint32_t) const override { return false; }  // the pipes know

  // The launches of one execution. `waited` as in cuda/exchange.h. Spans of `exchange` lie in
  // memory of the device.
  Status Enqueue(cuda::Stream stream, const RowExchange& exchange, uint32_t* waited) const;

 private:
  const uint64_t row_bytes_, packed_rows_, landed_rows_;  // 0: sent or placed as they lie
  Lane lane_;
  executor::DeviceMemory memory_, shared_;
  // Parts of memory_.
  cuda::PipeMessage* messages_ = nullptr;
  std::byte** addresses_ = nullptr;
  cuda::PipeLine* lines_ = nullptr;
  const int32_t* missing_ = nullptr;  // an index of no row
  std::byte* packed_ = nullptr;
  std::byte* landed_ = nullptr;
  // Parts of shared_, lowered by kernels.
  struct Faults {
    uint64_t index = cuda::kNoFault, counts = cuda::kNoFault, places = cuda::kNoFault;
  };
  Faults* faults_ = nullptr;
};

}  // namespace uccl::moe
