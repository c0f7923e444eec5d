// Fields separated by the ASCII unit separator, the free text last. See abort_message.h.
#include "csrc/collectives/abort_message.h"

#include <charconv>
#include <system_error>

#include "csrc/engine/engine.h"

namespace uccl::coll {
namespace {

constexpr char kSeparator = '\x1f';

}  // namespace

std::string EncodeAbort(uint64_t comm_id, const Status& cause) {
  std::string s = "abort";
  for (int64_t field : {static_cast<int64_t>(comm_id), static_cast<int64_t>(cause.code), cause.peer,
                        cause.process}) {
    s += kSeparator + std::to_string(field);
  }
  s += kSeparator + cause.detail;
  if (s.size() > engine::Engine::kMaxControlBytes) s.resize(engine::Engine::kMaxControlBytes);
  return s;
}

bool DecodeAbort(std::string_view text, uint64_t* comm_id, Status* cause) {
  const auto next = [&text]() -> std::string_view {
    const size_t end = text.find(kSeparator);
    const std::string_view field = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    return field;
  };
  if (next() != "abort") return false;
  int64_t fields[4] = {};
  for (int64_t& field : fields) {
    const std::string_view f = next();
    const auto [stop, error] = std::from_chars(f.data(), f.data() + f.size(), field);
    if (error != std::errc() || stop != f.data() + f.size()) return false;
  }
  *comm_id = static_cast<uint64_t>(fields[0]);
  // A code from a newer peer that this one does not know is still an abort.
  const bool known = fields[1] > 0 && fields[1] <= static_cast<int64_t>(StatusCode::kAborted);
  *cause = Status::Error(known ? static_cast<StatusCode>(fields[1]) : StatusCode::kAborted,
                         std::string(text));
  cause->peer = fields[2];
  cause->process = fields[3];
  return true;
}

}  // namespace uccl::coll
