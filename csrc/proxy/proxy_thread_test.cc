// One proxy thread alone: what it owes to a Use that ends while it decides whether to sleep.
#include "csrc/proxy/proxy_thread.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include "csrc/fifo/fifo_device.h"
#include "csrc/fifo/host_fifo.h"
#include "csrc/proxy/entry.h"
#include "csrc/proxy/region.h"

namespace uccl::proxy {
namespace {

constexpr Nanos kPatience = std::chrono::seconds(60);

// A Use under which a command is pushed and which then ends, all between two steps of the thread:
// where the thread asks whether anybody uses it.
class EndingUse final : public Carrier {
 public:
  EndingUse(const fifo::FifoView& fifo, const fifo::Command& command)
      : fifo_(fifo), command_(command) {}

  bool in_use() const override {
    if (std::exchange(in_use_, false)) {
      EXPECT_EQ(fifo::Push(fifo_, command_), fifo::PushOutcome::kPushed);
    }
    return false;
  }
  void SendPut(Entry*, const PutNote&, Bytes) override { FAIL() << "nothing was put"; }
  std::shared_ptr<Entry> LocalEntry(uint64_t, uint32_t) override { return nullptr; }
  bool IsLocal(ProcessId) const override { return true; }
  void EnterBarrier(Entry*, uint8_t) override { FAIL() << "no barrier was pushed"; }
  PeerLoad& LoadOf(ProcessId) override { return load_; }
  void OnQuietTime() override {}

 private:
  const fifo::FifoView fifo_;
  const fifo::Command command_;
  mutable bool in_use_ = true;  // of the proxy thread
  PeerLoad load_;
};

TEST(ProxyThread, CommandRightBeforeTheEndOfTheUse_IsCarriedOut) {
  alignas(16) std::array<std::byte, 64> memory{};
  RegionOptions options;
  options.key = 1, options.processes = {ProcessId{0}};
  options.memory = memory, options.num_counters = 1;
  const std::shared_ptr<Region> region = Region::Make(options).value();
  const auto entry = std::make_shared<Entry>(0, region, /*window=*/16);
  const auto made = fifo::HostFifo::Make(4);
  fifo::HostFifo& words = *made.value();
  fifo::Command quiet;
  quiet.kind = fifo::CommandKind::kQuiet;
  quiet.counter = 0, quiet.amount = 1;

  EndingUse carrier(words.view(), quiet);
  // No time to poll: the first turn without work ends in sleep.
  ProxyThread thread(&carrier, {16, 16, Nanos{0}, FromMicros(20)}, /*first=*/false);
  auto fifo = std::make_shared<Fifo>(entry, 0, &thread, words.slots(), words.control());
  ASSERT_TRUE(thread.Start(-1).ok());
  ProxyThread::Event add;
  add.kind = ProxyThread::Event::Kind::kAdd;
  add.fifo = std::move(fifo);
  thread.Push(std::move(add));

  const Status status = region->Wait(0, 1, kPatience);
  EXPECT_TRUE(status.ok()) << status.ToString();
  thread.Stop();
}

}  // namespace
}  // namespace uccl::proxy
