// Status and Result: how faults travel inside the native code. A peer's or the network's fault is
// always a Status; exceptions do not cross rooms. The one-line text form is parsed back by
// jax_uccl/_src/errors.py.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "csrc/base/types.h"

namespace uccl {

enum class StatusCode : uint8_t {
  kOk = 0,
#define UCCL_STATUS(enumerator, name, ffi_code, python, meaning) enumerator,
#include "csrc/base/status_codes.inc"
#undef UCCL_STATUS
};

// "PeerTimeout" for kPeerTimeout; "Ok" for kOk.
const char* StatusCodeName(StatusCode code);

struct [[nodiscard]] Status {
  StatusCode code = StatusCode::kOk;
  std::string op;        // "all_to_all f32[4,8]"; empty when no operation is meant
  int64_t comm_id = -1;  // communicator hash, -1 when unknown
  int64_t peer = -1;     // rank (JAX device id) that is missing or at fault, -1 when unknown
  int64_t process = -1;  // process that owns the peer, -1 when unknown
  int64_t path = -1;
  int64_t seq = -1;  // number of this operation on its communicator, counted on this rank
  int64_t bytes = -1;
  Nanos elapsed{-1};  // since the operation was issued here
  std::string detail;

  bool ok() const { return code == StatusCode::kOk; }
  // `uccl.PeerTimeout op=all_reduce comm=0 peer=3 process=1 seq=4711 elapsed_ms=30001: detail`.
  // Unknown fields are left out. Values never contain spaces except op, which is quoted.
  std::string ToString() const;

  static Status Ok() { return {}; }
  static Status Error(StatusCode code, std::string detail) {
    Status s;
    s.code = code;
    s.detail = std::move(detail);
    return s;
  }
};

// A value or the reason there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : v_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return std::holds_alternative<T>(v_); }
  const Status& status() const { return std::get<Status>(v_); }
  T& value() { return std::get<T>(v_); }
  const T& value() const { return std::get<T>(v_); }

 private:
  std::variant<T, Status> v_;
};

}  // namespace uccl
