// What is fuzzed: functions that take bytes of a stranger and throw a Finding when something is
// wrong that no sanitizer would see. The same functions run under libFuzzer (fuzzer_main.cc) and,
// over the kept corpus, in the ordinary tests (replay_test.cc). docs/testing.md tells how to use
// both.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

#include "csrc/base/types.h"

namespace uccl::fuzz {

// A property that does not hold.
struct Finding : std::logic_error {
  using std::logic_error::logic_error;
};
inline void Require(bool holds, const char* property) {
  if (!holds) throw Finding(property);
}

struct Target {
  const char* name;  // also of its folder of inputs, corpus/<name>
  void (*run)(Bytes input);
  // An input that is a list of records of this size is also mutated record by record; 0: it is not.
  size_t record_bytes;
  const char* summary;
};
// To add one: a file beside this one, a row in targets.cc, a folder under corpus/.
std::span<const Target> Targets();

void FuzzWire(Bytes input);
void FuzzConnection(Bytes input);
void FuzzText(Bytes input);

// Every record of a connection's input: the first one is its settings, each other one a step.
inline constexpr size_t kRecordBytes = 16;

}  // namespace uccl::fuzz
