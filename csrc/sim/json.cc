// See json.h.
#include "csrc/sim/json.h"

#include <array>
#include <charconv>
#include <concepts>
#include <cstdio>
#include <string_view>
#include <vector>

namespace uccl::sim {
namespace {

class Writer final {
 public:
  template <std::integral T>
  void Value(T value) {
    text_ += std::to_string(value);
  }
  void Value(bool value) { text_ += value ? "true" : "false"; }
  void Value(Nanos value) { Value(value.count()); }
  void Value(double value) {
    std::array<char, 32> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    text_.append(digits.data(), end);
  }
  void Value(std::string_view value) {
    text_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') text_ += '\\';
      if (static_cast<unsigned char>(c) < 0x20) {
        std::array<char, 8> escape;
        std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
        text_ += escape.data();
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }
  void Value(const QueueSample& s) {
    Value(std::vector<int64_t>{s.time.count(), s.max_bytes, s.mean_bytes, s.p99_bytes});
  }
  void Value(const PathUsage& usage) {
    Open();
    Field("tier", std::string_view(usage.tier));
    Field("bytes", usage.bytes);
    Close();
  }
  template <class T>
  void Value(const std::vector<T>& values) {
    text_ += '[';
    bool first = true;
    for (const auto& value : values) {
      if (!first) text_ += ',';
      first = false;
      if constexpr (std::is_same_v<T, std::string>) {
        Value(std::string_view(value));
      } else {
        Value(value);
      }
    }
    text_ += ']';
  }
  template <class T>
  void Field(std::string_view name, const T& value) {
    Name(name);
    Value(value);
  }
  void Name(std::string_view name) {
    if (text_.back() != '{') text_ += ',';
    Value(name);
    text_ += ':';
  }
  void Open() { text_ += '{'; }
  void Close() { text_ += '}'; }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace

std::string ToJson(const Settings& settings, const Report& r) {
  Writer w;
  w.Open();
  w.Name("settings");
  w.Open();
#define SIM_INT(name, def, min, max, unit, help) w.Field(#name, settings.name);
#define SIM_REAL(name, def, min, max, unit, help) w.Field(#name, settings.name);
#define SIM_STR(name, def, help) w.Field(#name, std::string_view(settings.name));
#include "csrc/sim/settings_table.inc"
#undef SIM_INT
#undef SIM_REAL
#undef SIM_STR
  w.Close();
#define UCCL_FIELD(name) w.Field(#name, r.name)
  UCCL_FIELD(complete);
  UCCL_FIELD(violations);
  UCCL_FIELD(violation_texts);
  // As text: a JSON number may be read as a double, which has too few digits.
  std::array<char, 17> hash;
  std::snprintf(hash.data(), hash.size(), "%016llx", static_cast<unsigned long long>(r.trace_hash));
  w.Field("trace_hash", std::string_view(hash.data()));
  UCCL_FIELD(events);
  w.Field("completion_ns", r.completion);
  w.Field("ideal_ns", r.ideal);
  UCCL_FIELD(payload_bytes);
  UCCL_FIELD(goodput_share);
  UCCL_FIELD(flow_ns);
  UCCL_FIELD(small_flow_ns);
  UCCL_FIELD(cross_flow_ns);
  UCCL_FIELD(queue_drops);
  UCCL_FIELD(loss_drops);
  UCCL_FIELD(down_drops);
  UCCL_FIELD(receive_ring_drops);
  UCCL_FIELD(corrupted);
  UCCL_FIELD(peak_queue_bytes);
  w.Field("queue_samples", r.queues);
  UCCL_FIELD(path_usage);
  UCCL_FIELD(hosts);
  UCCL_FIELD(switches);
  UCCL_FIELD(links);
  UCCL_FIELD(flows);
  UCCL_FIELD(ends);
  w.Field("base_rtt_ns", r.base_rtt);
  UCCL_FIELD(window_bytes);
  UCCL_FIELD(peak_packets);
  UCCL_FIELD(peak_posted_bytes);
  UCCL_FIELD(peak_events_pending);
#undef UCCL_FIELD
  w.Name("network");
  w.Open();
  w.Field("sent", r.network.sent);
  w.Field("duplicated", r.network.duplicated);
  w.Field("delivered", r.network.delivered);
  w.Field("dropped", r.network.dropped);
  w.Field("sent_bytes", r.network.sent_bytes);
  w.Field("delivered_bytes", r.network.delivered_bytes);
  w.Field("marked", r.network.marked);
  w.Close();
  w.Name("transport");
  w.Open();
#define UCCL_FIELD(name) w.Field(#name, r.transport.name)
  UCCL_FIELD(packets_sent);
  UCCL_FIELD(payload_bytes_sent);
  UCCL_FIELD(payload_bytes_received);
  UCCL_FIELD(retransmits_fast);
  UCCL_FIELD(retransmits_timeout);
  UCCL_FIELD(spurious_retransmits);
  UCCL_FIELD(duplicates);
  UCCL_FIELD(bad_checksum);
  UCCL_FIELD(timeouts);
  UCCL_FIELD(acks_sent);
  UCCL_FIELD(credits_sent);
  UCCL_FIELD(requests_to_send);
#undef UCCL_FIELD
  w.Close();
  w.Close();
  return w.Take();
}

}  // namespace uccl::sim
