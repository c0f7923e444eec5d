// The settings of a simulation as a struct, from text, with bounds; settings_table.inc is the
// table.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "csrc/base/status.h"

namespace uccl::sim {

struct Settings {
#define SIM_INT(name, def, min, max, unit, help) int64_t name = def;
#define SIM_REAL(name, def, min, max, unit, help) double name = def;
#define SIM_STR(name, def, help) std::string name = def;
#include "csrc/sim/settings_table.inc"
#undef SIM_INT
#undef SIM_REAL
#undef SIM_STR
};

struct SettingRow {
  const char* name;
  const char* default_value;
  const char* unit;
  const char* help;
};
std::span<const SettingRow> SettingRows();

// Defaults, overridden by `values`. kInvalidArgument names what is unknown, no number or out of
// bounds.
Result<Settings> MakeSettings(const std::map<std::string, std::string>& values);
// The inverse: every setting by its name, numbers with all their digits.
std::map<std::string, std::string> ToText(const Settings& settings);

}  // namespace uccl::sim
