// Settings from names and environment variables to a checked struct. The environment comes in as a
// map, so that reading it is the caller's single act and tests need no real one.
#include "csrc/base/config.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>
#include <system_error>
#include <utility>

namespace uccl {
namespace {

std::string Range(const ConfigRow& row) {
  return "a whole number from " + std::to_string(row.min) + " to " + std::to_string(row.max) + " " +
         row.unit;
}

// "setting paths=0 (from the environment variable JAX_UCCL_PATHS)": what was given and where.
std::string Given(const ConfigRow& row, const std::string& value, bool from_environment) {
  std::string text = "setting " + row.name + "=\"" + value + "\"";
  if (from_environment) text += " (from the environment variable " + row.env + ")";
  return text;
}

Status ParseInt(const ConfigRow& row, const std::string& value, bool from_environment,
                int64_t* out) {
  int64_t parsed = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, parsed);
  const bool out_of_range =
      error == std::errc::result_out_of_range ||
      (error == std::errc() && stop == end && (parsed < row.min || parsed > row.max));
  if (!out_of_range && (error != std::errc() || stop != end)) {
    return Status::Error(StatusCode::kInvalidArgument,
                         Given(row, value, from_environment) + " is not a number; give " +
                             Range(row) + " or leave it out for " + row.default_value);
  }
  if (out_of_range) {
    return Status::Error(StatusCode::kInvalidArgument,
                         Given(row, value, from_environment) + " is outside its range; give " +
                             Range(row) + " or leave it out for " + row.default_value);
  }
  *out = parsed;
  return Status::Ok();
}

std::string KnownNames() {
  std::string names;
  for (const ConfigRow& row : ConfigRows()) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

// Letters to change, add or leave out until `a` is `b`.
size_t EditDistance(std::string_view a, std::string_view b) {
  // Distances of the first letters of `a`, so many so far, to each beginning of `b`.
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

const ConfigRow& Nearest(const std::string& text, std::string ConfigRow::* spelling) {
  return *std::ranges::min_element(
      ConfigRows(), {}, [&](const ConfigRow& row) { return EditDistance(text, row.*spelling); });
}

// A variable with our prefix that names no setting: misspelt, or of another version. Left alone,
// the job would run otherwise than its user thinks.
Status CheckVariables(const std::map<std::string, std::string>& environment) {
  constexpr std::string_view kPrefix = "JAX_UCCL_";
  constexpr std::string_view kLauncher = "JAX_UCCL_LAUNCH_";  // what it tells its processes
  for (const auto& [name, value] : environment) {
    if (!name.starts_with(kPrefix) || name.starts_with(kLauncher) || value.empty()) continue;
    if (std::ranges::find(ConfigRows(), name, &ConfigRow::env) != ConfigRows().end()) continue;
    return Status::Error(StatusCode::kInvalidArgument,
                         "unknown environment variable " + name + "=\"" + value +
                             "\"; unset it, or correct its name: the nearest known one is " +
                             Nearest(name, &ConfigRow::env).env + ", docs/config.md lists all");
  }
  return Status::Ok();
}

// Limits that two settings share; each range alone cannot express them.
Status CheckTogether(const Config& config) {
  if (config.min_rto_us > config.max_rto_us) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "setting min_rto_us=" + std::to_string(config.min_rto_us) +
                             " is greater than max_rto_us=" + std::to_string(config.max_rto_us) +
                             "; lower min_rto_us or raise max_rto_us");
  }
  return Status::Ok();
}

}  // namespace

const std::vector<ConfigRow>& ConfigRows() {
  static const std::vector<ConfigRow> rows = {
#define UCCL_CONFIG_INT(name, env, def, min, max, unit, help) \
  {#name, env, std::to_string(int64_t{def}), unit, help, true, min, max},
#define UCCL_CONFIG_STR(name, env, def, help) {#name, env, def, "", help, false, 0, 0},
#include "csrc/base/config_table.inc"
#undef UCCL_CONFIG_INT
#undef UCCL_CONFIG_STR
  };
  return rows;
}

Result<Config> MakeConfig(const std::map<std::string, std::string>& settings,
                          const std::map<std::string, std::string>& environment) {
  const std::vector<ConfigRow>& rows = ConfigRows();
  for (const auto& [name, value] : settings) {
    const bool known = std::any_of(rows.begin(), rows.end(),
                                   [&name = name](const ConfigRow& r) { return r.name == name; });
    if (!known) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "unknown setting \"" + name + "\" (value \"" + value +
                               "\"); the nearest known one is " +
                               Nearest(name, &ConfigRow::name).name + ", all are " + KnownNames());
    }
  }
  Status variables = CheckVariables(environment);
  if (!variables.ok()) return variables;
  Config config;
  size_t index = 0;
  // An environment variable that is set but empty counts as not set: `VAR= cmd` is how shells clear
  // one. `settings` may hold an empty string on purpose (address="" means: find it).
  const auto find = [&](const ConfigRow& row, bool* from_environment) -> const std::string* {
    if (auto it = settings.find(row.name); it != settings.end()) {
      *from_environment = false;
      return &it->second;
    }
    if (auto it = environment.find(row.env); it != environment.end() && !it->second.empty()) {
      *from_environment = true;
      return &it->second;
    }
    return nullptr;
  };
  bool from_environment = false;
#define UCCL_CONFIG_INT(name, env, def, min, max, unit, help)                     \
  if (const std::string* text = find(rows[index], &from_environment)) {           \
    Status status = ParseInt(rows[index], *text, from_environment, &config.name); \
    if (!status.ok()) return status;                                              \
  }                                                                               \
  ++index;
#define UCCL_CONFIG_STR(name, env, def, help)                                              \
  if (const std::string* text = find(rows[index], &from_environment)) config.name = *text; \
  ++index;
#include "csrc/base/config_table.inc"
#undef UCCL_CONFIG_INT
#undef UCCL_CONFIG_STR
  Status together = CheckTogether(config);
  if (!together.ok()) return together;
  return config;
}

}  // namespace uccl
