// Tests of csrc/engine/limits.h: the published text, and limits that both ends must agree on.
#include "csrc/engine/limits.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

namespace uccl::engine {
namespace {

Hello SomeHello() {
  Hello h;
  h.backend = "udp";
  h.nic_address = "127.0.0.1:4001,4002";
  h.paths = 2;
  h.max_datagram_bytes = 49152;
  h.receive_buffer_bytes = 6'000'000;
  h.eager_max_bytes = 16384;
  h.eager_buffer_bytes = 1 << 20;
  h.credit_initial_bytes = 30000;
  h.receiver_scheduler = "eqds";
  return h;
}

core::ConnectionConfig Make(const Config& config, const Hello& mine, const Hello& theirs,
                            int64_t processes = 2, size_t route = 65507) {
  return MakeConnectionConfig(config, mine, theirs, {7, ProcessId{0}, ProcessId{1}, processes},
                              route);
}

TEST(Hello, EncodeDecode_IsIdentity) {
  Result<Hello> r = DecodeHello(EncodeHello(SomeHello()));
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_EQ(r.value(), SomeHello());
}

TEST(Hello, Encode_IsPrintableText) {
  for (const char c : EncodeHello(SomeHello())) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
}

TEST(Addresses, JoinSplit_IsIdentity) {
  for (const int64_t engines : {1, 2, 5}) {
    std::vector<std::string> addresses;
    for (int64_t i = 0; i < engines; ++i) {
      Hello h = SomeHello();
      h.nic_address = "127.0.0.1:" + std::to_string(4000 + i);
      addresses.push_back(EncodeHello(h));
    }
    const std::string text = JoinAddresses(addresses);
    for (const char c : text) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
    Result<std::vector<std::string>> split = SplitAddresses(text, engines, ProcessId{1});
    ASSERT_TRUE(split.ok());
    EXPECT_EQ(split.value(), addresses);
  }
}

TEST(Addresses, Split_OfAnotherCountNamesBothAndTheSetting) {
  const std::string one = EncodeHello(SomeHello());
  Result<std::vector<std::string>> split =
      SplitAddresses(JoinAddresses({one, one, one}), 2, ProcessId{4});
  ASSERT_FALSE(split.ok());
  EXPECT_EQ(split.status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(split.status().process, 4);
  EXPECT_NE(split.status().detail.find("process 4 runs 3 engines, this one 2"), std::string::npos)
      << split.status().detail;
  EXPECT_NE(split.status().detail.find("JAX_UCCL_ENGINES"), std::string::npos);
}

TEST(Hello, Decode_OtherVersionIsNamed) {
  std::string text = EncodeHello(SomeHello());
  text.replace(0, 6, "uccl/9");
  Result<Hello> r = DecodeHello(text);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code, StatusCode::kProtocol);
  EXPECT_NE(r.status().detail.find("uccl/9"), std::string::npos);
  EXPECT_NE(r.status().detail.find("uccl/3"), std::string::npos);
}

TEST(Hello, Decode_UnknownFieldsArePassedOver) {
  Result<Hello> r = DecodeHello(EncodeHello(SomeHello()) + " color=blue");
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r.value(), SomeHello());
}

TEST(Hello, Decode_EveryFieldIsNeeded) {
  const std::string text = EncodeHello(SomeHello());
  for (const char* key : {"backend", "at", "paths", "datagram", "receive", "eager", "eager_buffer",
                          "credit", "credit_initial"}) {
    std::string cut = text;
    const size_t begin = cut.find(" " + std::string(key) + "=");
    ASSERT_NE(begin, std::string::npos) << key;
    const size_t end = cut.find(' ', begin + 1);
    cut.erase(begin, (end == std::string::npos ? cut.size() : end) - begin);
    Result<Hello> r = DecodeHello(cut);
    ASSERT_FALSE(r.ok()) << cut;
    EXPECT_EQ(r.status().code, StatusCode::kInvalidArgument);
  }
}

TEST(Hello, Decode_BadNumbersAreRefused) {
  for (const char* value : {"", "x", "-1", "1.5", "99999999999999999999", "0"}) {
    std::string text = EncodeHello(SomeHello());
    text.replace(text.find("paths=2"), 7, "paths=" + std::string(value));
    EXPECT_FALSE(DecodeHello(text).ok()) << value;
  }
}

TEST(Hello, Decode_DamagedTextsNeverCrash) {
  const std::string good = EncodeHello(SomeHello());
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    for (int i = 0; i < 3; ++i) text[random() % text.size()] = static_cast<char>(random());
    text.resize(random() % (text.size() + 1));
    refused += !DecodeHello(text).ok();
  }
  EXPECT_GT(refused, 10000);
}

TEST(Limits, BothEndsMatch) {
  Config config;
  Hello a = SomeHello(), b = SomeHello();
  b.paths = 8;
  b.eager_max_bytes = 100;
  b.eager_buffer_bytes = 5 << 20;
  const core::ConnectionConfig ab =
      MakeConnectionConfig(config, a, b, {7, ProcessId{0}, ProcessId{3}, 4}, 9000);
  const core::ConnectionConfig ba =
      MakeConnectionConfig(config, b, a, {7, ProcessId{3}, ProcessId{0}, 4}, 9000);
  EXPECT_EQ(ab.send_key, ba.recv_key);
  EXPECT_EQ(ab.recv_key, ba.send_key);
  EXPECT_NE(ab.send_key, ab.recv_key);
  EXPECT_EQ(ab.initial_send_psn, ba.initial_recv_psn);
  EXPECT_EQ(ab.initial_recv_psn, ba.initial_send_psn);
  EXPECT_EQ(ab.eager_max_bytes, 100);
  EXPECT_EQ(ba.eager_max_bytes, 100);
  EXPECT_EQ(ab.eager_buffer_bytes, ba.eager_buffer_bytes);
  EXPECT_EQ(ab.num_paths, 2);
  EXPECT_EQ(ba.num_paths, 2);
}

TEST(Limits, KeysDifferBetweenPairsDirectionsAndSessions) {
  std::set<uint64_t> keys;
  size_t count = 0;
  for (uint64_t session = 0; session < 4; ++session) {
    for (int32_t from = 0; from < 24; ++from) {
      for (int32_t to = 0; to < 24; ++to) {
        if (from == to) continue;
        const LinkIdentity id{session, ProcessId{from}, ProcessId{to}, 24};
        keys.insert(MakeConnectionConfig(Config(), SomeHello(), SomeHello(), id, 9000).send_key);
        ++count;
      }
    }
  }
  EXPECT_EQ(keys.size(), count);
}

TEST(Limits, Window_IsAnEqualPartOfThePeersBuffer) {
  Config config;
  config.window_bytes = 4'000'000;
  Hello theirs = SomeHello();
  EXPECT_EQ(Make(config, SomeHello(), theirs, 2).window_bytes, 4'000'000);
  EXPECT_EQ(Make(config, SomeHello(), theirs, 4).window_bytes, 2'000'000);
  EXPECT_EQ(Make(config, SomeHello(), theirs, 25).window_bytes, 250'000);
  config.path_policy = "single";  // all of it arrives at one of two sockets
  EXPECT_EQ(Make(config, SomeHello(), theirs, 4).window_bytes, 1'000'000);
  theirs.receive_buffer_bytes = 0;
  EXPECT_GE(Make(config, SomeHello(), theirs, 4).window_bytes, 1);
}

TEST(Limits, Datagram_IsTheSmallestOfAllLimits) {
  Config config;
  config.window_bytes = 4'000'000;
  Hello theirs = SomeHello();
  EXPECT_EQ(Make(config, SomeHello(), theirs, 2, 65507).max_datagram_bytes, 49152u);
  EXPECT_EQ(Make(config, SomeHello(), theirs, 2, 1472).max_datagram_bytes, 1472u);
  theirs.max_datagram_bytes = 1200;
  EXPECT_EQ(Make(config, SomeHello(), theirs, 2, 1472).max_datagram_bytes, 1200u);
  theirs = SomeHello();
  theirs.receive_buffer_bytes = 64 << 10;  // a quarter of the window, so that four are in flight
  EXPECT_EQ(Make(config, SomeHello(), theirs, 2, 65507).max_datagram_bytes, size_t{16} << 10);
  theirs.receive_buffer_bytes = 4 << 10;
  EXPECT_EQ(Make(config, SomeHello(), theirs, 2, 65507).max_datagram_bytes, 8192u);
}

// What one path has in flight lies in one socket of the peer, and all peers may send at once.
TEST(Limits, PathWindow_IsOneSocketsShare) {
  Hello theirs = SomeHello();
  theirs.paths = 8;
  theirs.receive_buffer_bytes = 8 << 20;
  EXPECT_EQ(Make({}, SomeHello(), theirs, 2, 1472).path_window_bytes, 1 << 20);
  EXPECT_EQ(Make({}, SomeHello(), theirs, 5, 1472).path_window_bytes, 256 << 10);
}

TEST(Limits, Ecn_OnlyWithAControllerThatReacts) {
  Config config;
  for (const char* name : {"cubic", "dcqcn"}) {
    config.congestion_control = name;
    EXPECT_TRUE(UsesEcn(config)) << name;
  }
  config.ecn = 0;
  EXPECT_FALSE(UsesEcn(config));
  config.ecn = 1;
  for (const char* name : {"none", "swift", "timely", "no such"}) {
    config.congestion_control = name;
    EXPECT_FALSE(UsesEcn(config)) << name;
  }
}

TEST(Limits, SettingsArePassedOn) {
  Config config;
  config.min_rto_us = 123;
  config.max_rto_us = 456000;
  config.peer_silence_ms = 789;
  config.congestion_control = "x";
  config.path_policy = "y";
  config.cc_scope = "z";
  config.cc_base_rtt_us = 13;
  config.cc_queue_budget_us = 14;
  config.line_rate_mbps = 80;
  config.cc_loss_tolerance_permille = 15;
  config.sticky_packets = 11;
  config.max_retries = 12;
  const core::ConnectionConfig c = Make(config, SomeHello(), SomeHello());
  EXPECT_EQ(c.min_rto, Nanos(123'000));
  EXPECT_EQ(c.max_rto, Nanos(456'000'000));
  EXPECT_EQ(c.peer_silence, Nanos(789'000'000));
  EXPECT_EQ(c.congestion_control, "x");
  EXPECT_EQ(c.path_policy, "y");
  EXPECT_EQ(c.cc_scope, "z");
  EXPECT_EQ(c.base_rtt, Nanos(13'000));
  EXPECT_EQ(c.queue_budget, Nanos(14'000));
  EXPECT_EQ(c.line_rate_bytes_per_s, 10'000'000);
  EXPECT_EQ(c.loss_tolerance_permille, 15);
  EXPECT_EQ(c.sticky_packets, 11);
  EXPECT_EQ(c.max_retries, 12);
}

}  // namespace
}  // namespace uccl::engine
