// Which path the next packet takes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/path/path.h"

namespace uccl::core {

class PathSelector {
 public:
  virtual ~PathSelector() = default;
  // `avoid` is the path of the lost transmission when this is a retransmission; another one is
  // taken if there is another. `paths` is not empty.
  virtual PathId Select(std::span<const PathState> paths, std::optional<PathId> avoid) = 0;
};

struct PathSelectorRow {
  const char* name;
  std::unique_ptr<PathSelector> (*make)(uint64_t seed);
  const char* summary;
};
// To add a policy: a class and a row in registry.cc.
std::span<const PathSelectorRow> PathSelectors();
// kInvalidArgument with the known names for an unknown one.
Result<std::unique_ptr<PathSelector>> MakePathSelector(const std::string& name, uint64_t seed);

}  // namespace uccl::core
