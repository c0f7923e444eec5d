// The one-line text form of a Status. jax_uccl/_src/errors.py parses it back, so the form is a
// contract: `uccl.<Name>` then ` key=value` for every known field in a fixed order, then `:
// detail`.
#include "csrc/base/status.h"

#include <cctype>
#include <string_view>

namespace uccl {
namespace {

// True for what may stand without quotes: nothing that a reader could take for the end of the
// value.
bool IsPlain(std::string_view text) {
  for (char c : text) {
    const bool word =
        std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
    if (!word) return false;
  }
  return !text.empty();
}

// A status is one line whatever a peer or the kernel put in its texts.
char OneLine(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c; }

void AppendOp(std::string* out, std::string_view op) {
  if (IsPlain(op)) {
    out->append(op);
    return;
  }
  out->push_back('"');
  for (char c : op) {
    if (c == '"' || c == '\\') out->push_back('\\');
    out->push_back(OneLine(c));
  }
  out->push_back('"');
}

void AppendField(std::string* out, const char* key, int64_t value) {
  if (value == -1) return;
  out->push_back(' ');
  out->append(key);
  out->push_back('=');
  out->append(std::to_string(value));
}

}  // namespace

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "Ok";
#define UCCL_STATUS(enumerator, name, ffi_code, python, meaning) \
  case StatusCode::enumerator:                                   \
    return name;
#include "csrc/base/status_codes.inc"
#undef UCCL_STATUS
  }
  return "Unknown";  // a value outside the enum, for example from a damaged message
}

std::string Status::ToString() const {
  std::string out = "uccl.";
  out += StatusCodeName(code);
  if (!op.empty()) {
    out += " op=";
    AppendOp(&out, op);
  }
  AppendField(&out, "comm", comm_id);
  AppendField(&out, "peer", peer);
  AppendField(&out, "process", process);
  AppendField(&out, "path", path);
  AppendField(&out, "seq", seq);
  AppendField(&out, "bytes", bytes);
  if (elapsed.count() >= 0) {
    out += " elapsed_ms=";
    out += std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count());
  }
  if (!detail.empty()) {
    out += ": ";
    for (char c : detail) out.push_back(OneLine(c));
  }
  return out;
}

}  // namespace uccl
