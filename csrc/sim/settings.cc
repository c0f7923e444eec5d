// See settings.h.
#include "csrc/sim/settings.h"

#include <array>
#include <charconv>
#include <optional>
#include <string_view>

namespace uccl::sim {
namespace {

constexpr SettingRow kRows[] = {
#define SIM_INT(name, def, min, max, unit, help) {#name, #def, unit, help},
#define SIM_REAL(name, def, min, max, unit, help) {#name, #def, unit, help},
#define SIM_STR(name, def, help) {#name, def, "", help},
#include "csrc/sim/settings_table.inc"
#undef SIM_INT
#undef SIM_REAL
#undef SIM_STR
};

template <class T>
Status Parse(std::string_view name, const std::string& text, T min, T max, T* out) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  // Negated, so that what is no number is refused.
  if (error != std::errc() || at != end || !(value >= min && value <= max)) {
    return Status::Error(StatusCode::kInvalidArgument,
                         std::string(name) + " is `" + text + "`, must be a number from " +
                             std::to_string(min) + " to " + std::to_string(max));
  }
  *out = value;
  return Status::Ok();
}

std::string Text(const std::string& value) { return value; }
template <class T>
std::string Text(T value) {
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

// Nothing when there is no setting of this name.
std::optional<Status> Set(Settings* settings, const std::string& key, const std::string& value) {
#define SIM_INT(name, def, min, max, unit, help) \
  if (key == #name) return Parse<int64_t>(key, value, min, max, &settings->name);
#define SIM_REAL(name, def, min, max, unit, help) \
  if (key == #name) return Parse<double>(key, value, min, max, &settings->name);
#define SIM_STR(name, def, help) \
  if (key == #name) {            \
    settings->name = value;      \
    return Status::Ok();         \
  }
#include "csrc/sim/settings_table.inc"
#undef SIM_INT
#undef SIM_REAL
#undef SIM_STR
  return std::nullopt;
}

}  // namespace

std::span<const SettingRow> SettingRows() { return kRows; }

Result<Settings> MakeSettings(const std::map<std::string, std::string>& values) {
  Settings settings;
  for (const auto& [key, value] : values) {
    const std::optional<Status> status = Set(&settings, key, value);
    if (!status) {
      return Status::Error(StatusCode::kInvalidArgument, "unknown setting `" + key + "`");
    }
    if (!status->ok()) return *status;
  }
  return settings;
}

std::map<std::string, std::string> ToText(const Settings& settings) {
  std::map<std::string, std::string> values;
#define SIM_INT(name, def, min, max, unit, help) values[#name] = Text(settings.name);
#define SIM_REAL(name, def, min, max, unit, help) values[#name] = Text(settings.name);
#define SIM_STR(name, def, help) values[#name] = Text(settings.name);
#include "csrc/sim/settings_table.inc"
#undef SIM_INT
#undef SIM_REAL
#undef SIM_STR
  return values;
}

}  // namespace uccl::sim
