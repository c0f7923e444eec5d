// Tests of csrc/collectives/tuning_file.h.
#include "csrc/collectives/tuning_file.h"

#include <gtest/gtest.h>

#include <string>

namespace uccl::coll {
namespace {

std::string ErrorOf(const std::string& text) {
  const Result<CostParams> r = ParseTuning(text, "tuned.json");
  if (r.ok()) return "no error";
  EXPECT_EQ(r.status().code, StatusCode::kInvalidArgument);
  return r.status().detail;
}

void ExpectError(const std::string& text, const std::string& part) {
  const std::string error = ErrorOf(text);
  EXPECT_NE(error.find(part), std::string::npos) << error;
  EXPECT_NE(error.find("tuned.json"), std::string::npos) << error;
}

TEST(TuningFile, ParametersOverDefaults) {
  const Result<CostParams> r = ParseTuning(
      " {\"jax_uccl_tuning\": 1,\n \"note\": \"on \\\"a\\\" host\",\n"
      "\"host_latency_ns\" : 77, \"reduce_byte_ps\":0}\n",
      "t");
  ASSERT_TRUE(r.ok()) << r.status().detail;
  CostParams want;
  want.host_latency_ns = 77;
  want.reduce_byte_ps = 0;
  EXPECT_EQ(r.value(), want);
}

TEST(TuningFile, EveryParameterCanBeGiven) {
  std::string text = "{\"jax_uccl_tuning\": 1";
  int64_t value = 1000;
  for (const CostRow& row : CostRows())
    text += ", \"" + row.name + "\": " + std::to_string(value++);
  const Result<CostParams> r = ParseTuning(text + "}", "t");
  ASSERT_TRUE(r.ok()) << r.status().detail;
  value = 1000;
  for (const CostRow& row : CostRows()) EXPECT_EQ(r.value().*row.member, value++) << row.name;
}

TEST(TuningFile, ErrorsNameThePlaceAndWhatIsAllowed) {
  ExpectError("", "expected \"{\"");
  ExpectError("{}", "lacks \"jax_uccl_tuning\"");
  ExpectError("{\"jax_uccl_tuning\": 2}", "version 2");
  ExpectError("{\"jax_uccl_tuning\": 1,\n\n\"host_latency\": 5}", "line 3");
  ExpectError("{\"jax_uccl_tuning\": 1, \"host_latency\": 5}", "host_latency_ns");
  ExpectError("{\"jax_uccl_tuning\": 1, \"stage_ns\": -1}", "stage_ns=-1, outside 0 to 1000000000");
  ExpectError("{\"jax_uccl_tuning\": 1, \"stage_ns\": 1000000001}", "outside");
  ExpectError("{\"jax_uccl_tuning\": 1, \"stage_ns\": fast}", "expected an integer");
  ExpectError("{\"jax_uccl_tuning\": 1, \"stage_ns\": 99999999999999999999}",
              "expected an integer");
  ExpectError("{\"jax_uccl_tuning\": 1, \"stage_ns\": 1.5}", "expected \",\"");
  ExpectError("{\"jax_uccl_tuning\": 1, \"stage_ns\": 1, \"stage_ns\": 1}", "twice");
  ExpectError("{\"jax_uccl_tuning\": 1} x", "end of the file");
  ExpectError("{\"jax_uccl_tuning\": 1, \"note\": \"", "text in quotes");
  ExpectError("{\"jax_uccl_tuning\": 1,", "expected a key");
  ExpectError("{\"jax_uccl_tuning\" 1}", "expected \":\"");
}

TEST(TuningFile, FileThatIsNotThere) {
  const Result<CostParams> r = ReadTuningFile("/nowhere/tuned.json");
  ASSERT_FALSE(r.ok());
  EXPECT_NE(r.status().detail.find("/nowhere/tuned.json"), std::string::npos);
  EXPECT_NE(r.status().detail.find("tuning_file"), std::string::npos);
}

}  // namespace
}  // namespace uccl::coll
