// Settings of one runtime, generated from config_table.inc. Read once at start; nothing else calls
// getenv.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "csrc/base/status.h"

namespace uccl {

struct Config {
#define UCCL_CONFIG_INT(name, env, def, min, max, unit, help) int64_t name = def;
#define UCCL_CONFIG_STR(name, env, def, help) std::string name = def;
#include "csrc/base/config_table.inc"
#undef UCCL_CONFIG_INT
#undef UCCL_CONFIG_STR
  bool operator==(const Config&) const = default;
};

// One row of the table in readable form, for Python and the documentation.
struct ConfigRow {
  std::string name, env, default_value, unit, help;
  bool is_int = false;
  int64_t min = 0, max = 0;
};
const std::vector<ConfigRow>& ConfigRows();

// Applies `settings` (by row name) over the environment over the defaults. An unknown name, also of
// a variable that begins with JAX_UCCL_ (those of the launcher, JAX_UCCL_LAUNCH_*, are not
// settings), a value that does not parse or one outside its range is kInvalidArgument naming the
// setting, the value and the range.
Result<Config> MakeConfig(const std::map<std::string, std::string>& settings,
                          const std::map<std::string, std::string>& environment);

}  // namespace uccl
