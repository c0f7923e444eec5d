// Tests of stream_handlers.h: the handlers called as XLA would call them, with call frames made
// here, on streams of the host.
#include "xla_ffi/stream_handlers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "xla_ffi/testing/custom_call.h"

namespace uccl::xla_ffi {
namespace {

using testing::CustomCall;
using testing::Floats;
using testing::Integers;
using StreamHandlers = testing::OnStreams;

TEST_F(StreamHandlers, AllReduce_DirectlyAndFromAGraph) {
  CustomCall call("all_reduce", 1, 2, "sum");
  ASSERT_EQ(call.Instantiate(), "");
  std::vector<float> x[2], y[2] = {std::vector<float>(100), std::vector<float>(100)};
  cuda::HostGraph graphs[2];
  for (int32_t r = 0; r < 2; ++r) {
    x[r].assign(100, static_cast<float>(r + 1));
    ASSERT_EQ(call.Initialize(r, {Floats(&x[r])}, {Floats(&y[r])}), "");
    ASSERT_EQ(call.Execute(r, streams_[r].get(), {Floats(&x[r])}, {Floats(&y[r])}), "");
  }
  Wait();
  for (const auto& result : y) EXPECT_EQ(result, std::vector<float>(100, 3));
  for (int32_t r = 0; r < 2; ++r) {
    streams_[r]->BeginCapture();
    ASSERT_EQ(call.Execute(r, streams_[r].get(), {Floats(&x[r])}, {Floats(&y[r])}), "");
    graphs[r] = streams_[r]->EndCapture();
  }
  for (float k = 0; k < 3; ++k) {
    for (int32_t r = 0; r < 2; ++r) {
      std::fill(x[r].begin(), x[r].end(), k);
      streams_[r]->Replay(graphs[r]);
    }
    Wait();
    for (const auto& result : y) EXPECT_EQ(result, std::vector<float>(100, 2 * k));
  }
}

// What was recorded would go on in memory of the epoch before.
TEST_F(StreamHandlers, AfterAShutdown_WhatRanBeforeIsRefusedAndNewProgramsRun) {
  std::vector<float> x[2] = {{1}, {2}}, y[2] = {{0}, {0}};
  CustomCall call("all_reduce", 8, 2, "sum"), again("all_reduce", 8, 2, "sum");
  ASSERT_EQ(call.Instantiate(), "");
  const auto run = [&](CustomCall* one) {
    for (int32_t r = 0; r < 2; ++r) {
      const std::string error = one->Initialize(r, {Floats(&x[r])}, {Floats(&y[r])});
      if (!error.empty()) return error;
      EXPECT_EQ(one->Execute(r, streams_[r].get(), {Floats(&x[r])}, {Floats(&y[r])}), "");
    }
    Wait();
    EXPECT_EQ(y[0], std::vector<float>(1, 3));
    return std::string();
  };
  EXPECT_EQ(run(&call), "");
  ASSERT_TRUE(coll::TheRuntime().Shutdown(Nanos(0)).ok());
  EXPECT_NE(run(&call).find("jax.clear_caches()"), std::string::npos);
  ASSERT_EQ(again.Instantiate(), "");
  y[0] = {0};
  EXPECT_EQ(run(&again), "");
}

TEST_F(StreamHandlers, ABarrierHandsItsOperandsThrough) {
  CustomCall call("barrier", 2, 2);
  ASSERT_EQ(call.Instantiate(), "");
  std::vector<float> x[2] = {{1, 2}, {3, 4}}, y[2] = {{0, 0}, {0, 0}};
  std::vector<int32_t> a[2] = {{5}, {6}}, b[2] = {{0}, {0}};
  for (int32_t r = 0; r < 2; ++r) {
    ASSERT_EQ(call.Execute(r, streams_[r].get(), {Floats(&x[r]), Integers(&a[r])},
                           {Floats(&y[r]), Integers(&b[r])}),
              "");
  }
  Wait();
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(y[r], x[r]);
    EXPECT_EQ(b[r], a[r]);
  }
}

TEST_F(StreamHandlers, RaggedAllToAll_BySizesOnTheDevice) {
  CustomCall call("ragged_all_to_all", 3, 2);
  ASSERT_EQ(call.Instantiate(), "");
  // Rank 0 keeps 1 row and sends 2; rank 1 sends 1 and keeps none.
  std::vector<float> x[2] = {{1, 2, 3}, {4, 5, 6}}, y[2] = {{9, 9, 9}, {9, 9, 9}}, none;
  std::vector<int32_t> from[2] = {{0, 1}, {0, 0}}, send[2] = {{1, 2}, {1, 0}},
                       to[2] = {{0, 1}, {0, 0}}, receive[2] = {{1, 1}, {2, 0}};
  for (int32_t r = 0; r < 2; ++r) {
    ASSERT_EQ(call.Execute(r, streams_[r].get(),
                           {Floats(&x[r]), Floats(&none), Integers(&from[r]), Integers(&send[r]),
                            Integers(&to[r]), Integers(&receive[r])},
                           {Floats(&y[r])}),
              "");
  }
  Wait();
  EXPECT_EQ(y[0], (std::vector<float>{1, 4, 0}));
  EXPECT_EQ(y[1], (std::vector<float>{2, 3, 0}));
}

TEST_F(StreamHandlers, WhatTheyCannotTake_IsRefusedInWords) {
  std::vector<float> x(4), y(4), small(3);
  std::vector<int32_t> sizes(2);
  CustomCall sum("all_reduce", 4, 2, "sum");
  ASSERT_EQ(sum.Instantiate(), "");
  EXPECT_NE(sum.Initialize(0, {Floats(&x)}, {Floats(&small)}).find("expected 16 and 16"),
            std::string::npos);
  EXPECT_NE(sum.Initialize(5, {Floats(&x)}, {Floats(&y)}).find("ordinal 5"), std::string::npos);
  EXPECT_NE(sum.Initialize(0, {}, {}), "");
  CustomCall ragged("ragged_all_to_all", 5, 2);
  ASSERT_EQ(ragged.Instantiate(), "");
  EXPECT_NE(
      ragged.Execute(0, streams_[0].get(), {Floats(&x), Floats(&x)}, {Floats(&y)}).find("vectors"),
      std::string::npos);
  EXPECT_NE(ragged
                .Execute(0, streams_[0].get(),
                         {Floats(&x), Floats(&x), Integers(&sizes), Integers(&sizes),
                          Integers(&sizes), Floats(&x)},
                         {Floats(&y)})
                .find("must be int32[2]"),
            std::string::npos);
  CustomCall unknown("all_shuffle", 6, 2);
  EXPECT_NE(unknown.Instantiate().find("unknown operation `all_shuffle`"), std::string::npos);
  const Config direct;
  ASSERT_TRUE(coll::TheRuntime().SetConfig(direct).ok());
  CustomCall gather("all_gather", 7, 2);
  ASSERT_EQ(gather.Instantiate(), "");
  std::vector<float> both(8);
  EXPECT_NE(gather.Initialize(0, {Floats(&x)}, {Floats(&both)}).find("executor=fifo"),
            std::string::npos);
  cuda::Device other = cuda::HostDevice();
  ++other.version;
  EXPECT_NE(AttachDevice(&other, {}).detail.find("build them together"), std::string::npos);
}

}  // namespace
}  // namespace uccl::xla_ffi
