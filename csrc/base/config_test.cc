// Tests of csrc/base/config.h: every row of the table, the order of sources, the words of the
// errors.
#include "csrc/base/config.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace uccl {
namespace {

using Map = std::map<std::string, std::string>;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string ErrorOf(const Map& settings, const Map& environment = {}) {
  Result<Config> r = MakeConfig(settings, environment);
  if (r.ok()) return "no error";
  EXPECT_EQ(r.status().code, StatusCode::kInvalidArgument);
  return r.status().detail;
}

TEST(Config, MakeConfig_NothingGivesDefaults) {
  Result<Config> r = MakeConfig({}, {});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r.value(), Config());
  EXPECT_EQ(r.value().backend, "udp");
  EXPECT_EQ(r.value().paths, 16);
}

TEST(Config, MakeConfig_SettingsWinOverEnvironmentOverDefaults) {
  const Map environment = {{"JAX_UCCL_PATHS", "7"}, {"JAX_UCCL_SPIN_US", "9"}, {"PATH", "/bin"}};
  Result<Config> r = MakeConfig({{"paths", "8"}}, environment);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r.value().paths, 8);
  EXPECT_EQ(r.value().spin_us, 9);
  EXPECT_EQ(r.value().window_bytes, Config().window_bytes);
}

TEST(Config, MakeConfig_EmptyEnvironmentVariableCountsAsUnset) {
  Result<Config> r = MakeConfig({}, {{"JAX_UCCL_PATHS", ""}, {"JAX_UCCL_BACKEND", ""}});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r.value(), Config());
}

TEST(Config, MakeConfig_ErrorNamesSettingValueRangeAndSource) {
  const std::string low = ErrorOf({{"paths", "0"}});
  EXPECT_TRUE(Contains(low, "paths=\"0\"")) << low;
  EXPECT_TRUE(Contains(low, "from 1 to 256 paths")) << low;
  EXPECT_FALSE(Contains(low, "environment")) << low;
  const std::string env = ErrorOf({}, {{"JAX_UCCL_PATHS", "257"}});
  EXPECT_TRUE(Contains(env, "JAX_UCCL_PATHS")) << env;
  EXPECT_TRUE(Contains(env, "257")) << env;
  for (const char* text : {"", " 4", "4 ", "4.0", "four", "0x4", "+4", "--4", "4K"}) {
    EXPECT_TRUE(Contains(ErrorOf({{"paths", text}}), "is not a number")) << text;
  }
  EXPECT_TRUE(Contains(ErrorOf({{"paths", "99999999999999999999"}}), "outside its range"));
  EXPECT_TRUE(Contains(ErrorOf({{"paths", "-99999999999999999999"}}), "outside its range"));
}

TEST(Config, MakeConfig_UnknownNameListsTheKnown) {
  const std::string text = ErrorOf({{"path", "4"}});
  EXPECT_TRUE(Contains(text, "\"path\"")) << text;
  for (const ConfigRow& row : ConfigRows()) EXPECT_TRUE(Contains(text, row.name)) << row.name;
}

TEST(Config, MakeConfig_UnknownNameIsToldTheNearest) {
  EXPECT_TRUE(Contains(ErrorOf({{"pahts", "4"}}), "nearest known one is paths,"));
  EXPECT_TRUE(Contains(ErrorOf({{"", "4"}}), "nearest known one is "));
}

TEST(Config, MakeConfig_UnknownVariableIsAnErrorThatNamesTheNearest) {
  const std::string text = ErrorOf({}, {{"JAX_UCCL_EXECUTER", "fifo"}, {"JAX_UCCL_PATHS", "4"}});
  EXPECT_TRUE(Contains(text, "JAX_UCCL_EXECUTER=\"fifo\"")) << text;
  EXPECT_TRUE(Contains(text, "nearest known one is JAX_UCCL_EXECUTOR,")) << text;
  EXPECT_TRUE(Contains(ErrorOf({}, {{"JAX_UCCL_PATH", "4"}}), "one is JAX_UCCL_PATHS,"));
  EXPECT_TRUE(Contains(ErrorOf({}, {{"JAX_UCCL_WINDOW", "4"}}), "one is JAX_UCCL_"));
}

TEST(Config, MakeConfig_VariablesThatAreNoSettingsOfOursAreLeftAlone) {
  const Map environment = {
      {"JAX_UCCL_LAUNCH_RANK", "3"}, {"JAX_UCCL_EXECUTER", ""},   {"JAX_UCCLX", "1"},
      {"JAX_PLATFORMS", "cpu"},      {"UCCL_TEST_MOE", "native"}, {"jax_uccl_paths", "9"}};
  Result<Config> r = MakeConfig({}, environment);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_EQ(r.value(), Config());
}

TEST(Config, MakeConfig_RtoBoundsMustBeOrdered) {
  const std::string text = ErrorOf({{"min_rto_us", "5000"}, {"max_rto_us", "1000"}});
  EXPECT_TRUE(Contains(text, "min_rto_us=5000")) << text;
  EXPECT_TRUE(Contains(text, "max_rto_us=1000")) << text;
}

TEST(Config, Rows_EveryRowIsSoundAndItsLimitsAreEnforced) {
  std::set<std::string> names, variables;
  for (const ConfigRow& row : ConfigRows()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(names.insert(row.name).second);
    EXPECT_TRUE(variables.insert(row.env).second);
    EXPECT_EQ(row.env.rfind("JAX_UCCL_", 0), 0u);
    EXPECT_FALSE(row.help.empty());
    if (!row.is_int) {
      EXPECT_TRUE(MakeConfig({{row.name, "anything"}}, {}).ok());
      continue;
    }
    EXPECT_FALSE(row.unit.empty());
    // The partner setting moves out of the way so that only this row's limits are seen.
    Map wide = {{"min_rto_us", "100"}, {"max_rto_us", "60000000"}};
    if (row.name == "max_rto_us") wide["min_rto_us"] = "100";
    for (const int64_t good : {row.min, row.max, int64_t{std::stoll(row.default_value)}}) {
      Map settings = wide;
      settings[row.name] = std::to_string(good);
      EXPECT_TRUE(MakeConfig(settings, {}).ok()) << good;
    }
    for (const int64_t bad : {row.min - 1, row.max + 1}) {
      Map settings = wide;
      settings[row.name] = std::to_string(bad);
      EXPECT_TRUE(Contains(ErrorOf(settings), "outside its range")) << bad;
    }
  }
}

}  // namespace
}  // namespace uccl
