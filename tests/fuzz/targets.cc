// The table of targets.h.
#include "tests/fuzz/targets.h"

namespace uccl::fuzz {

std::span<const Target> Targets() {
  static constexpr Target kTargets[] = {
      {"wire", &FuzzWire, 0, "one datagram: decoding, and encoding what was decoded"},
      {"connection", &FuzzConnection, kRecordBytes,
       "a connection between an application and a peer that holds the key and obeys no rule"},
      {"text", &FuzzText, 0, "what processes tell each other in words: hellos, addresses, aborts"},
  };
  return kTargets;
}

}  // namespace uccl::fuzz
