// Tests of csrc/engine/transmit_batch.h against a device that takes as much as the test allows.
#include "csrc/engine/transmit_batch.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace uccl::engine {
namespace {

class MeteredNic final : public nic::NicBackend {
 public:
  size_t room = 1000;
  std::vector<std::string> sent;  // "peer/path:text"

  const nic::Capabilities& capabilities() const override { return capabilities_; }
  std::string LocalAddress() const override { return "here"; }
  Result<nic::PeerHandle> AddPeer(const std::string&) override { return nic::PeerHandle{0}; }
  size_t MaxDatagramBytes(nic::PeerHandle) const override { return 1000; }
  size_t PostSend(std::span<const nic::Outgoing> batch) override {
    const size_t taken = std::min(batch.size(), room);
    room -= taken;
    for (const nic::Outgoing& out : batch.first(taken)) {
      std::string text = std::to_string(out.peer) + "/" + std::to_string(ToInt(out.path)) + ":";
      for (const Bytes part : {out.header, out.payload}) {
        for (const std::byte b : part) text.push_back(static_cast<char>(b));
      }
      sent.push_back(std::move(text));
    }
    return taken;
  }
  size_t Poll(std::span<nic::Incoming>) override { return 0; }
  std::vector<nic::Fault> PollFaults() override { return {}; }
  void Wait(Nanos, bool) override {}
  void Wake() override {}

 private:
  nic::Capabilities capabilities_;
};

Bytes View(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(TransmitBatch, Flush_SendsInOrderWithCopiedHeaders) {
  MeteredNic nic;
  TransmitBatch batch;
  std::string header = "h1";
  const std::string payload = "payload";
  batch.Add(4, {PathId{2}, View(header), View(payload)});
  header = "h2";  // the connection reuses its memory
  batch.Add(5, {PathId{3}, View(header), {}});
  header = "xx";
  EXPECT_TRUE(batch.Flush(&nic));
  EXPECT_EQ(nic.sent, (std::vector<std::string>{"4/2:h1payload", "5/3:h2"}));
  EXPECT_FALSE(batch.stalled());
  EXPECT_FALSE(batch.Flush(&nic));
}

TEST(TransmitBatch, Flush_KeepsWhatIsRefusedAlthoughBuffersChange) {
  MeteredNic nic;
  TransmitBatch batch;
  std::vector<std::string> payloads = {"p0", "p1", "p2", "p3", "p4"};
  for (std::string& p : payloads) batch.Add(1, {PathId{0}, View("h"), View(p)});
  nic.room = 2;
  EXPECT_TRUE(batch.Flush(&nic));
  EXPECT_TRUE(batch.stalled());
  for (std::string& p : payloads) p = "??";
  EXPECT_FALSE(batch.Flush(&nic));  // no room yet
  nic.room = 1;
  EXPECT_TRUE(batch.Flush(&nic));
  EXPECT_TRUE(batch.stalled());
  nic.room = 100;
  EXPECT_TRUE(batch.Flush(&nic));
  EXPECT_FALSE(batch.stalled());
  EXPECT_EQ(nic.sent,
            (std::vector<std::string>{"1/0:hp0", "1/0:hp1", "1/0:hp2", "1/0:hp3", "1/0:hp4"}));
}

TEST(TransmitBatch, Flush_AnswersGoBeforeAcknowledgements) {
  MeteredNic nic;
  TransmitBatch batch;
  const std::string ack = "ack", data = "data", bulk(70000, 'b');
  batch.Add(1, {PathId{0}, View(ack), {}});
  batch.Add(1, {PathId{1}, View(data), View(data)});
  EXPECT_TRUE(batch.Flush(&nic));
  EXPECT_EQ(nic.sent, (std::vector<std::string>{"1/1:datadata", "1/0:ack"}));
  // In bulk an acknowledgement keeps its place: the peer's window waits for it.
  nic.sent.clear();
  batch.Add(1, {PathId{0}, View(ack), {}});
  batch.Add(1, {PathId{1}, View(data), View(bulk)});
  EXPECT_TRUE(batch.Flush(&nic));
  EXPECT_EQ(nic.sent[0], "1/0:ack");
}

TEST(TransmitBatch, Full_AtCapacity) {
  MeteredNic nic;
  TransmitBatch batch;
  const std::string header(wire::kMaxHeadBytes, 'h');
  for (size_t i = 0; i < TransmitBatch::kCapacity; ++i) {
    ASSERT_FALSE(batch.full()) << i;
    batch.Add(0, {PathId{0}, View(header), {}});
  }
  EXPECT_TRUE(batch.full());
  EXPECT_TRUE(batch.Flush(&nic));
  EXPECT_FALSE(batch.full());
  ASSERT_EQ(nic.sent.size(), TransmitBatch::kCapacity);
  EXPECT_EQ(nic.sent.back(), "0/0:" + header);
}

TEST(TransmitBatch, Full_BeforeTheLongestHeadersOutgrowTheirMemory) {
  MeteredNic nic;
  TransmitBatch batch;
  size_t added = 0;
  for (; !batch.full(); ++added) {
    ASSERT_LT(added, TransmitBatch::kCapacity);
    batch.Add(
        0, {PathId{0}, View(std::string(wire::kMaxAckBytes, static_cast<char>('a' + added))), {}});
  }
  EXPECT_GE(added, 16u);
  EXPECT_TRUE(batch.Flush(&nic));
  ASSERT_EQ(nic.sent.size(), added);
  for (size_t i = 0; i < added; ++i) {
    EXPECT_EQ(nic.sent[i], "0/0:" + std::string(wire::kMaxAckBytes, static_cast<char>('a' + i)));
  }
}

TEST(TransmitBatch, Full_AtTheBytesThatStayInTheCache) {
  TransmitBatch batch;
  const std::string header = "h", payload(64000, 'p');
  size_t added = 0;
  for (; !batch.full(); ++added) batch.Add(0, {PathId{0}, View(header), View(payload)});
  EXPECT_EQ(added, (TransmitBatch::kMaxBytes + payload.size()) / (payload.size() + 1));
}

}  // namespace
}  // namespace uccl::engine
