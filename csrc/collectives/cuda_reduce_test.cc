// The kernel of csrc/cuda/reduce.h gives the bits of reduce.h here, for every pair that both know.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "csrc/collectives/reduce.h"
#include "csrc/cuda/reduce.h"
#include "csrc/cuda/testing/launcher.h"

namespace uccl::coll {
namespace {

using cuda::Element;
using cuda::Launcher;
using cuda::Reduction;

struct Pair {
  DType dtype;
  Element element;
};
constexpr Pair kPairs[] = {
    {DType::kU8, Element::kU8},   {DType::kU16, Element::kU16},   {DType::kU32, Element::kU32},
    {DType::kU64, Element::kU64}, {DType::kS8, Element::kS8},     {DType::kS16, Element::kS16},
    {DType::kS32, Element::kS32}, {DType::kS64, Element::kS64},   {DType::kF16, Element::kF16},
    {DType::kF32, Element::kF32}, {DType::kBF16, Element::kBF16}, {DType::kF64, Element::kF64}};
struct Op {
  ReduceOp op;
  Reduction reduction;
};
constexpr Op kOps[] = {{ReduceOp::kSum, Reduction::kSum}, {ReduceOp::kProd, Reduction::kProd},
                       {ReduceOp::kMax, Reduction::kMax}, {ReduceOp::kMin, Reduction::kMin},
                       {ReduceOp::kAnd, Reduction::kAnd}, {ReduceOp::kOr, Reduction::kOr}};

// Any bits; of floats often near 1, so that not all sums are infinite.
std::vector<std::byte> RandomBits(Element e, size_t count, std::mt19937* rng) {
  std::vector<std::byte> b(count * cuda::ElementBytes(e));
  for (auto& x : b) x = static_cast<std::byte>((*rng)());
  std::normal_distribution<double> normal;
  for (size_t i = 0; i < count; ++i) {
    if ((*rng)() % 8 == 0) continue;
    const double v = normal(*rng);
    const auto f = static_cast<float>(v);
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if (e == Element::kF32) std::memcpy(&b[4 * i], &f, 4);
    if (e == Element::kF64) std::memcpy(&b[8 * i], &v, 8);
    if (e == Element::kBF16) bits >>= 16, std::memcpy(&b[2 * i], &bits, 2);
    if (e == Element::kF16) b[2 * i + 1] = static_cast<std::byte>((*rng)() % 16 + 0x34);
  }
  return b;
}

// `inputs` vectors, each `offset` bytes (whole elements) off its alignment.
void Check(Launcher* launcher, Pair pair, Op op, size_t inputs, size_t count, size_t offset,
           std::mt19937* rng) {
  SCOPED_TRACE(launcher->name() + " " + DTypeName(pair.dtype) + " " + ReduceOpName(op.op) + " of " +
               std::to_string(inputs) + " x " + std::to_string(count));
  const size_t bytes = count * cuda::ElementBytes(pair.element);
  std::vector<std::shared_ptr<std::byte>> owned;
  const auto table = launcher->Allocate(inputs * sizeof(void*));
  auto* pointers = reinterpret_cast<const std::byte**>(table.get());
  for (size_t i = 0; i < inputs; ++i) {
    owned.push_back(launcher->Allocate(bytes + offset + 1));
    const auto values = RandomBits(pair.element, count, rng);
    if (bytes > 0) std::memcpy(owned.back().get() + offset, values.data(), bytes);
    pointers[i] = owned.back().get() + offset;
  }
  std::vector<std::byte> want(bytes);
  std::byte* const outputs[] = {want.data()};
  ReduceElements(pair.dtype, op.op, {pointers, inputs}, outputs, count);

  constexpr size_t kGuard = 32;
  const auto to = launcher->Allocate(bytes + offset + kGuard);
  std::memset(to.get(), 0xa5, bytes + offset + kGuard);
  cuda::ReduceParams p;
  p.inputs = pointers, p.input_count = static_cast<uint32_t>(inputs);
  p.to = to.get() + offset, p.count = count, p.element = pair.element, p.op = op.reduction;
  const Status status = launcher->Run(p);
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(std::memcmp(p.to, want.data(), bytes), 0);
  for (size_t i = 0; i < kGuard; ++i) ASSERT_EQ(p.to[bytes + i], std::byte{0xa5});
}

TEST(CudaReduce, HasTheBitsOfReduceElements) {
  std::mt19937 rng(5);
  for (Launcher* launcher : cuda::Launchers()) {
    for (Pair pair : kPairs) {
      for (Op op : kOps) {
        ASSERT_EQ(cuda::CanReduce(pair.element, op.reduction), ReduceSupported(pair.dtype, op.op));
        if (!cuda::CanReduce(pair.element, op.reduction)) continue;
        const size_t size = cuda::ElementBytes(pair.element);
        Check(launcher, pair, op, 1 + rng() % 9, rng() % 300, rng() % 3 * size, &rng);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Every shape of the tree: the order shows in sums of float32, and in their 16-bit cousins that
// there is one rounding.
TEST(CudaReduce, KeepsTheTreeForAnyNumberOfInputs) {
  std::mt19937 rng(6);
  const Op sum = kOps[0];
  for (Launcher* launcher : cuda::Launchers()) {
    for (size_t inputs = 1; inputs <= 40; ++inputs) {
      Check(launcher, {DType::kF32, Element::kF32}, sum, inputs, 21, 0, &rng);
      Check(launcher, {DType::kBF16, Element::kBF16}, sum, inputs, 21, 0, &rng);
    }
    for (size_t inputs : {127, 128, 1000}) {
      Check(launcher, {DType::kF32, Element::kF32}, sum, inputs, 5, 0, &rng);
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(CudaReduce, TheResultMayReplaceAnInput) {
  for (Launcher* launcher : cuda::Launchers()) {
    const auto memory = launcher->Allocate(3 * 64 * 4), table = launcher->Allocate(3 * 8);
    auto* values = reinterpret_cast<float*>(memory.get());
    auto* pointers = reinterpret_cast<const std::byte**>(table.get());
    for (int i = 0; i < 3 * 64; ++i) values[i] = static_cast<float>(i);
    for (int i = 0; i < 3; ++i) pointers[i] = memory.get() + i * 64 * 4;
    cuda::ReduceParams p;
    p.inputs = pointers, p.input_count = 3, p.to = memory.get() + 64 * 4, p.count = 63;
    ASSERT_TRUE(launcher->Run(p).ok());
    for (int i = 0; i < 63; ++i) ASSERT_EQ(values[64 + i], static_cast<float>(192 + 3 * i));
    ASSERT_EQ(values[64 + 63], 127.0f);
  }
}

TEST(CudaReduce, RefusesWhatNoKernelCanDo) {
  float value = 0;
  const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(&value)};
  cuda::ReduceParams good;
  good.inputs = inputs, good.input_count = 1, good.count = 1;
  good.to = reinterpret_cast<std::byte*>(&value);
  EXPECT_TRUE(CheckParams(good).ok());
  const auto refused = [&](auto change, const std::string& word) {
    cuda::ReduceParams p = good;
    change(&p);
    const Status status = CheckParams(p);
    EXPECT_EQ(status.code, StatusCode::kInvalidArgument) << word;
    EXPECT_NE(status.detail.find(word), std::string::npos) << status.detail;
  };
  refused([](auto* p) { p->op = Reduction::kOr; }, "for integers");
  refused([](auto* p) { p->input_count = 0; }, "0 inputs: 1 to 65536");
  refused([](auto* p) { p->input_count = 70000; }, "70000 inputs");
  refused([](auto* p) { p->inputs = nullptr; }, "without an address");
  refused([](auto* p) { p->to += 1; }, "aligned");
}

}  // namespace
}  // namespace uccl::coll
