// A connection, its application and its attacker. The first record of the input chooses the
// settings, every other one is a step: something that the application does, time passing, or a
// datagram of a peer that holds the key, sees all that is sent and obeys no rule. Honest steps are
// among them (it acknowledges, grants what was requested, sends what was granted), or nothing
// behind the handshakes would be reached. Datagrams carry the right checksum; those that do not are
// a step as well.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "csrc/core/cc/registry.h"
#include "csrc/core/credit/registry.h"
#include "csrc/core/path/path_selector.h"
#include "csrc/core/testing/crafter.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/simulation.h"
#include "tests/fuzz/connection_oracle.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/seal.h"
#include "tests/fuzz/targets.h"

namespace uccl::fuzz {
namespace {

using core::MessageInfo;
using core::testing::Crafter;
using Packet = Crafter::Packet;

constexpr size_t kMostSteps = 400;
constexpr size_t kMostMessages = 48;  // of the application
constexpr size_t kMostEarlyBytes = 1 << 16;
constexpr size_t kMostRemembered = 64;
constexpr size_t kStepsAfterFailure = 4;
constexpr uint64_t kMostFloodPackets = 6000;  // beyond any limit
// A drain that sends this much more than any window are a loop.
constexpr size_t kMostDatagramsAtOnce = 20'000;

struct Settings {
  core::ConnectionConfig connection = core::testing::DefaultConfig();
  std::string scheduler;
};

Settings ReadSettings(Input in) {
  Settings settings;
  core::ConnectionConfig& c = settings.connection;
  c.num_paths = in.Pick(std::array<uint16_t, 5>{1, 2, 4, 7, 40});
  c.max_datagram_bytes = in.Pick(std::array<size_t, 4>{540, 1200, 2000, 9000});
  c.eager_max_bytes = in.Pick(std::array<int64_t, 4>{0, 100, 1000, 16'384});
  c.eager_buffer_bytes = in.Pick(std::array<int64_t, 4>{0, 1000, 5000, 65'536});
  c.window_bytes = in.Pick(std::array<int64_t, 3>{1, 3000, 65'536});
  c.min_rto = FromMicros(in.Pick(std::array<int64_t, 3>{100, 1000, 10'000}));
  c.max_rto = FromMicros(in.Pick(std::array<int64_t, 3>{50, 20'000, 1'000'000}));
  c.peer_silence = FromMillis(in.Pick(std::array<int64_t, 3>{1, 100, 10'000}));
  c.congestion_control = in.Pick(core::CongestionControllers()).name;
  const uint8_t kinds = in.Byte();
  c.cc_scope = kinds % 2 == 0 ? "connection" : "path";
  const auto schedulers = core::ReceiverSchedulers();
  settings.scheduler = schedulers[kinds / 2 % schedulers.size()].name;
  c.credit_initial_bytes = kinds >= 0x80 ? 0 : 5000;
  c.path_policy = in.Pick(core::PathSelectors()).name;
  c.sticky_packets = in.Pick(std::array<int64_t, 3>{0, 1, 4});
  c.max_retries = in.Pick(std::array<int64_t, 3>{1, 3, 50});
  c.initial_send_psn = in.Pick(std::array<uint32_t, 3>{0, 1000, 0xffff'fffc});
  c.initial_recv_psn = in.Pick(std::array<uint32_t, 3>{0, 70'000, 0xffff'fffa});
  c.first_number = in.Pick(std::array<uint32_t, 2>{0, 0xffff'fffe});
  return settings;
}

class Scenario final {
 public:
  Scenario(const Settings& settings, uint64_t flood_packets)
      : config_(settings.connection),
        oracle_(config_, settings.scheduler),
        peer_(config_.recv_key, config_.initial_recv_psn),
        // Microseconds of 32 bits wrap during the run.
        now_(FromMicros((int64_t{1} << 32) - 5000)),
        flood_left_(flood_packets) {}

  void Step(Input in);
  void Finish() { oracle_.Finish(now_); }
  bool over() const { return oracle_.failed(); }

 private:
  void Apply(Input in);
  void Pass(Nanos time);
  void Drain(size_t most);
  // The application.
  void StartMessage(Input in, bool is_send);
  // The attacker.
  void Deliver(const Packet& packet, Input* in);
  Packet Eager(Input* in);
  Packet Data(Input* in);
  Packet Ack(Input* in);
  Packet HonestAck();
  Packet Small(Input* in);
  Packet Raw(Input* in);
  Packet Flood(Input* in, uint32_t i);
  void AnswerRequests(Input* in);
  void ServeGrant(Input* in);
  // A message that the attacker knows of, or invents; its size and digest are not always right.
  Oracle::Message AnyMessage(Input* in);
  std::vector<std::byte> Content(uint64_t tag, uint64_t offset, size_t size);

  const core::ConnectionConfig config_;
  Oracle oracle_;
  Crafter peer_;
  Nanos now_;
  uint64_t next_tag_ = 1;
  std::vector<Packet> sent_;             // the attacker's, to replay
  std::map<uint32_t, uint64_t> served_;  // receive_id -> bytes sent for it in order
  std::map<uint64_t, std::pair<uint32_t, uint64_t>> eager_;  // tag -> message_id, bytes sent
  uint32_t next_message_id_ = 0;
  std::map<uint64_t, Oracle::Message> ahead_;  // by tag: sent before the application knew
  size_t requests_answered_ = 0;
  uint64_t flood_left_;  // packets
};

void Scenario::Pass(Nanos time) {
  now_ = time;
  if (oracle_.NextTimeout() > now_) return;
  oracle_.OnTimeout(now_);
  Drain(kMostDatagramsAtOnce);
  // An engine whose timer stays due would spin. What a drain sends may arm a timer that is due at
  // once; that must come to an end.
  for (int i = 0; i < 64 && oracle_.NextTimeout() <= now_; ++i) {
    oracle_.OnTimeout(now_);
    Drain(kMostDatagramsAtOnce);
  }
  Require(oracle_.NextTimeout() > now_, "a timer that fired moves on");
}

void Scenario::Drain(size_t most) {
  oracle_.GiveCredit(now_);
  Require(oracle_.Poll(now_, most) < kMostDatagramsAtOnce, "sending comes to an end");
}

void Scenario::StartMessage(Input in, bool is_send) {
  if (next_tag_ > kMostMessages) return;
  const size_t near = in.Byte() % 4;
  size_t size = 0;
  switch (in.Byte() % 5) {
    case 0:
      size = near;
      break;
    case 1:
      size = static_cast<size_t>(std::max<int64_t>(config_.eager_max_bytes - 1, 0)) + near;
      break;
    case 2:
      size = config_.max_datagram_bytes - 101 + near;
      break;
    case 3:
      size = in.Get<uint16_t>() % 8192;
      break;
    default:
      size = in.Get<uint16_t>();
  }
  const uint64_t digest = in.Byte() % 8 == 7 ? 8 : 7;
  // What was sent ahead is mostly received as it was announced.
  if (const auto early = ahead_.find(next_tag_); early != ahead_.end() && near != 3)
    size = std::min<size_t>(early->second.info.size_bytes, kMostEarlyBytes);
  if (is_send) {
    oracle_.Send(now_, next_tag_++, size, digest);
  } else {
    oracle_.PostRecv(now_, next_tag_++, size, digest);
  }
}

Oracle::Message Scenario::AnyMessage(Input* in) {
  const uint8_t which = in->Byte(), twist = in->Byte();
  const auto& from = which % 4 == 3 ? oracle_.sends() : oracle_.receives();
  Oracle::Message message;
  if (which >= 0xf0) {
    message.tag = 1000 + which;  // of nothing that will ever be
    message.info = core::testing::Describe(message.tag, uint64_t{10} * twist);
  } else if (from.empty() || which >= 0xb0) {  // of what the application does next
    message.tag = next_tag_ + which % 3;
    const uint64_t size = (uint64_t{1} << in->Byte() % 17) - 1;
    message.info = core::testing::Describe(message.tag, size);
    message = ahead_.try_emplace(message.tag, message).first->second;
  } else {
    message = from[which / 4 % from.size()];
  }
  if (twist % 16 == 15) message.info.size_bytes = uint64_t{1} << (twist / 4);
  if (twist % 16 == 14) message.info.size_bytes += twist / 16;
  if (twist % 16 == 13) ++message.info.digest;
  return message;
}

std::vector<std::byte> Scenario::Content(uint64_t tag, uint64_t offset, size_t size) {
  std::vector<std::byte> bytes(size);
  FillContent(tag, offset, bytes);
  return bytes;
}

void Scenario::Deliver(const Packet& packet, Input* in) {
  const uint8_t how = in->Byte();
  const Ecn ecn = how % 4 == 0 ? Ecn::kCongested : Ecn::kCapable;
  if (sent_.size() < kMostRemembered) sent_.push_back(packet);
  // Of its exact size, so that a read beyond it is seen.
  oracle_.Deliver(now_, static_cast<PathId>(how / 4), Packet(packet), ecn);
}

// Continues an eager message, begins one, or does neither well.
Packet Scenario::Eager(Input* in) {
  const Oracle::Message m = AnyMessage(in);
  const uint8_t how = in->Byte();
  auto [at, fresh] = eager_.try_emplace(m.tag, next_message_id_, 0);
  if (fresh) ++next_message_id_;
  auto& [message_id, offset] = at->second;
  const uint64_t left = m.info.size_bytes - std::min(m.info.size_bytes, offset);
  uint64_t size = std::min<uint64_t>(left, config_.max_datagram_bytes - 100);
  if (how % 4 == 1) size = std::min<uint64_t>(size, in->Byte());
  uint64_t begin = offset;
  uint32_t id = message_id;
  if (how % 8 == 7) begin = in->Get<uint32_t>();
  if (how % 16 == 14) size += in->Byte();
  if (how % 16 == 12) id = in->Byte();
  offset += size;
  return peer_.Eager(m.info, id, static_cast<uint32_t>(begin), Content(m.tag, begin, size));
}

Packet Scenario::Data(Input* in) {
  const auto& grants = oracle_.grants_seen();
  const uint8_t which = in->Byte();
  const uint64_t offset = which % 8 == 7 ? in->Get<uint64_t>() : in->Get<uint16_t>();
  const size_t size = in->Byte() % 2 == 0 ? in->Byte() : in->Get<uint16_t>() % 1100;
  if (grants.empty() || which >= 0xe0) {
    oracle_.NoteLie();  // it may hit a receive whose grant was not sent yet
    return peer_.Data(config_.first_number + which % 8, offset, Content(which, offset, size));
  }
  const Oracle::Granted& grant = grants[which % grants.size()];
  return peer_.Data(grant.receive_id, offset, Content(grant.message.tag, offset, size));
}

Packet Scenario::Ack(Input* in) {
  wire::Ack ack;
  ack.next = oracle_.next_psn() - in->Get<uint16_t>() % 64;
  const uint8_t how = in->Byte();
  if (how % 16 == 15) ack.next = oracle_.next_psn() + in->Byte();
  ack.eager_consumed_bytes = how % 16 == 14 ? ~uint64_t{0} >> (how / 16) : in->Get<uint16_t>();
  ack.num_echoes = static_cast<uint8_t>(how % (wire::kMaxEchoes + 1));
  const uint8_t age = in->Byte(), marks = in->Byte();
  ack.granted_bytes = uint64_t{marks} << (age % 57);
  for (uint16_t i = 0; i < ack.num_echoes; ++i) {
    ack.echoes[i] = {static_cast<uint16_t>((how / 16 + i) % (config_.num_paths + 1)),
                     static_cast<uint16_t>(marks * 9), static_cast<uint16_t>(marks << (i % 9)),
                     static_cast<uint32_t>(ToMicros(now_)) - (uint32_t{1} << age % 32) + 1};
  }
  const Bytes seed = in->Take(8);
  std::vector<std::byte> bitmap(std::min<size_t>(age / 2, wire::kMaxBitmapBytes));
  for (size_t i = 0; i < bitmap.size() && !seed.empty(); ++i) bitmap[i] = seed[i % seed.size()];
  ack.bitmap = bitmap.data();
  ack.bitmap_bytes = static_cast<uint16_t>(bitmap.size());
  return peer_.Ack(ack);
}

// The packets that say little or nothing.
Packet Scenario::Small(Input* in) {
  const uint8_t kind = in->Byte();
  // Sums, so what matters is how they lie to those that were said before.
  const auto near = [&](int64_t base) {
    const uint8_t power = in->Byte();
    const uint64_t step = uint64_t{1} << (power % 64);
    return static_cast<uint64_t>(base) + (power >= 0x80 ? -step : step);
  };
  switch (kind % 4) {
    case 0:
      return peer_.Skip();
    case 1:
      return peer_.Probe();
    case 2:
      return peer_.Credit({near(oracle_.stats().credit_used_bytes)});
    default: {
      const core::ConnectionStats stats = oracle_.stats();
      const uint64_t wanted = near(stats.credit_granted_bytes);
      return peer_.Demand({wanted, kind >= 0x80 ? near(stats.credit_granted_bytes) : 0});
    }
  }
}

// Of all that was sent, with the round trip that it took.
Packet Scenario::HonestAck() {
  wire::Ack ack;
  ack.next = oracle_.next_psn();
  ack.eager_consumed_bytes = ~uint64_t{0} >> 1;  // cut to what was sent
  const core::ConnectionStats stats = oracle_.stats();
  ack.granted_bytes = static_cast<uint64_t>(stats.credit_wanted_bytes + stats.credit_void_bytes);
  ack.num_echoes = 1;
  ack.echoes[0] = {0, 1, 0, oracle_.newest_timestamp()};
  return peer_.Ack(ack);
}

// A header and a body of its own making, with everything put right that a stranger could.
Packet Scenario::Raw(Input* in) {
  Packet packet = peer_.Skip();
  packet[1] = static_cast<std::byte>(in->Byte() % 16);
  packet[4] = static_cast<std::byte>(in->Byte());
  const size_t size = in->Byte();
  const Bytes seed = in->Take(8);
  for (size_t i = 0; i < size; ++i)
    packet.push_back(seed.empty() ? std::byte{0} : seed[i % seed.size()]);
  Seal(packet);
  oracle_.NoteLie();
  return packet;
}

// Many of a kind, each with an identity of its own.
Packet Scenario::Flood(Input* in, uint32_t i) {
  Input kind = *in;
  const uint8_t byte = kind.Byte();
  if (byte >= 0xf0) return peer_.Demand({uint64_t{i} << 12, i});
  const MessageInfo info = core::testing::Describe(100'000 + i, byte / 8 * 100);
  switch (byte % 6) {
    case 0:
      return peer_.Request(info, 1000 + i);
    case 1:
      return peer_.Grant(info, 1000 + i);
    case 2:
      return peer_.Eager(info, 1000 + i, 0, {});
    case 3:
      return peer_.Control(Bytes(info.note));
    case 4:
      return peer_.Data(1'000'000 + i, 0, Bytes(info.note));
    default:
      return peer_.Probe();
  }
}

// Grants what was requested, in order.
void Scenario::AnswerRequests(Input* in) {
  if (requests_answered_ >= oracle_.requests_seen().size()) return;
  const MessageInfo info = oracle_.requests_seen()[requests_answered_].info;
  const auto id = static_cast<uint32_t>(requests_answered_++);
  Deliver(peer_.Grant(info, id), in);
}

// Announces and sends the next bytes of what was granted: all of them, if this step says so.
void Scenario::ServeGrant(Input* in) {
  const auto& grants = oracle_.grants_seen();
  if (grants.empty()) return;
  const uint8_t which = in->Byte(), packets = in->Byte();
  const Oracle::Granted grant = grants[which % grants.size()];
  auto [at, fresh] = served_.try_emplace(grant.receive_id, 0);
  if (fresh) Deliver(peer_.Request(grant.message.info, next_message_id_++), in);
  for (int i = 0; i <= packets; ++i) {
    const uint64_t left = grant.message.info.size_bytes - at->second;
    const uint64_t size = std::min<uint64_t>(left, config_.max_datagram_bytes - 40);
    Deliver(peer_.Data(grant.receive_id, at->second, Content(grant.message.tag, at->second, size)),
            in);
    at->second += size;
    if (at->second >= grant.message.info.size_bytes) break;
  }
}

void Scenario::Step(Input in) {
  Apply(in);
  oracle_.CheckState();
}

void Scenario::Apply(Input in) {
  const uint8_t step = in.Byte();
  // The attacker numbers its packets as it should, unless this step says otherwise.
  if (step >= 0xf0) peer_.set_psn(config_.initial_recv_psn + in.Get<uint16_t>());
  peer_.set_path(static_cast<uint16_t>(step % (config_.num_paths + 1)));
  peer_.set_timestamp(static_cast<uint32_t>(ToMicros(now_)) - (step >= 0xe0 ? 0x8000'0000u : 0));
  switch (step % 24) {
    case 0:
    case 1:
      return StartMessage(in, /*is_send=*/true);
    case 2:
    case 3:
      return StartMessage(in, /*is_send=*/false);
    case 4:
    case 5: {
      const bool is_send = step % 24 == 4;
      const uint8_t which = in.Byte();
      if (which < 0xc0) return oracle_.Cancel(now_, is_send, which);
      if (next_tag_ <= kMostMessages) oracle_.Discard(is_send, next_tag_++);
      return;
    }
    case 6:
      return oracle_.SendControl(now_, in.Get<uint16_t>() % 600);
    case 7:
      return Pass(now_ + FromMicros(static_cast<int64_t>(in.Power(34))));
    case 8: {
      const Nanos next = oracle_.NextTimeout();
      return Pass(next == kNever ? now_ + FromMicros(1) : std::max(now_, next));
    }
    case 9:
      return Drain(in.Byte());
    case 10:
      return Drain(kMostDatagramsAtOnce);
    case 11:
      return Deliver(Eager(&in), &in);
    case 12: {
      const Oracle::Message m = AnyMessage(&in);
      return Deliver(peer_.Request(m.info, next_message_id_++), &in);
    }
    case 13: {
      const Oracle::Message m = AnyMessage(&in);
      return Deliver(peer_.Grant(m.info, in.Byte()), &in);
    }
    case 14:
      return Deliver(Data(&in), &in);
    case 15: {
      const size_t size = in.Get<uint16_t>() % 1500;
      return Deliver(peer_.Control(Content(1, 0, size)), &in);
    }
    case 16:
      return Deliver(Small(&in), &in);
    case 17:
      return Deliver(Ack(&in), &in);
    case 18:
      return Deliver(HonestAck(), &in);
    case 19:
      return AnswerRequests(&in);
    case 20:
      return ServeGrant(&in);
    case 21: {
      if (sent_.empty()) return;
      Packet old = sent_[in.Byte() % sent_.size()];
      const uint8_t flip = in.Byte();
      if (flip % 2 == 1) old[flip % old.size()] ^= static_cast<std::byte>(in.Byte());
      if (flip % 8 == 6) old.resize(in.Byte() % (old.size() + 1));
      return Deliver(old, &in);
    }
    case 22:
      return Deliver(Raw(&in), &in);
    default: {
      const uint64_t count = std::min(in.Power(12), flood_left_);
      flood_left_ -= count;
      for (uint32_t i = 0; i < count && !oracle_.failed(); ++i) {
        Input how = in;
        how.Byte();
        Deliver(Flood(&in, i), &how);
      }
    }
  }
}

}  // namespace

void FuzzConnection(Bytes input) {
  Input in(input);
  const Bytes settings = in.Take(kRecordBytes);
  // Floods find the limits on what is kept; most inputs do without, because they take long.
  const bool floods = settings.size() == kRecordBytes && settings.back() >= std::byte{0xd0};
  Scenario scenario(ReadSettings(Input(settings)), floods ? kMostFloodPackets : 16);
  size_t left = kMostSteps;
  while (left > 0 && !in.empty()) {
    scenario.Step(Input(in.Take(kRecordBytes)));
    left = scenario.over() ? std::min(left - 1, kStepsAfterFailure) : left - 1;
  }
  scenario.Finish();
}

}  // namespace uccl::fuzz
