// The entry points of libFuzzer, once for each target: UCCL_FUZZ_TARGET names it. Inputs that are
// lists of records are mutated as such half of the time: whole records are repeated, moved and
// dropped, and one is changed in place, so that the steps behind it keep their meaning.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "tests/fuzz/targets.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace uccl::fuzz {
namespace {

const Target& TheTarget() {
  static const Target& target = *std::ranges::find_if(
      Targets(), [](const Target& t) { return t.name == std::string_view(UCCL_FUZZ_TARGET); });
  return target;
}

size_t MutateRecords(uint8_t* data, size_t size, size_t max_size, size_t record, uint32_t seed) {
  std::minstd_rand random(seed);
  const size_t count = (size + record - 1) / record;
  if (count == 0 || count * record > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memset(data + size, 0, count * record - size);
  const auto at = [&](size_t i) { return data + i * record; };
  const size_t i = random() % count, k = random() % count;
  switch (random() % 4) {
    case 0: {  // again, somewhere else
      if ((count + 1) * record > max_size) break;
      std::vector<uint8_t> copy(at(i), at(i) + record);
      std::memmove(at(k) + record, at(k), (count - k) * record);
      std::memcpy(at(k), copy.data(), record);
      return (count + 1) * record;
    }
    case 1:  // gone
      if (count == 1) break;
      std::memmove(at(i), at(i) + record, (count - i - 1) * record);
      return (count - 1) * record;
    case 2:  // in each other's place
      std::swap_ranges(at(i), at(i) + record, at(k));
      return count * record;
    default:
      break;
  }
  LLVMFuzzerMutate(at(i), record, record);
  return count * record;
}

}  // namespace
}  // namespace uccl::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uccl::fuzz::TheTarget().run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  const size_t record = uccl::fuzz::TheTarget().record_bytes;
  if (record == 0 || seed % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  return uccl::fuzz::MutateRecords(data, size, max_size, record, seed);
}
