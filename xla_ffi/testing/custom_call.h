// Custom calls as XLA would call their handlers, with call frames made here, on streams of the
// host.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/collectives/runtime.h"
#include "csrc/cuda/testing/host_device.h"
#include "csrc/cuda/testing/host_launchers.h"
#include "xla/ffi/api/c_api.h"
#include "xla_ffi/stream_handlers.h"

struct XLA_FFI_Error {
  XLA_FFI_Error_Code code;
  std::string message;
};
// What a call belongs to: an executable's state, the device, its stream.
struct XLA_FFI_ExecutionContext {
  void* state = nullptr;
  void* stream = nullptr;
  int32_t ordinal = 0;
};

namespace uccl::xla_ffi::testing {

using cuda::HostStream;

inline XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{args->errc, args->message};
}
inline const XLA_FFI_TypeInfo* state_info = nullptr;
inline XLA_FFI_Error* RegisterType(XLA_FFI_Type_Register_Args* args) {
  args->type_id->type_id = 7;
  state_info = args->type_info;
  return nullptr;
}
inline XLA_FFI_Error* SetState(XLA_FFI_State_Set_Args* args) {
  args->ctx->state = args->state;
  return nullptr;
}
inline XLA_FFI_Error* GetState(XLA_FFI_State_Get_Args* args) {
  args->state = args->ctx->state;
  return nullptr;
}
inline XLA_FFI_Error* GetStream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = args->ctx->stream;
  return nullptr;
}
inline XLA_FFI_Error* GetOrdinal(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = args->ctx->ordinal;
  return nullptr;
}
inline const XLA_FFI_Api& Api() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api a{};
    a.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    a.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
    a.api_version.major_version = XLA_FFI_API_MAJOR;
    a.api_version.minor_version = XLA_FFI_API_MINOR;
    a.XLA_FFI_Error_Create = &CreateError;
    a.XLA_FFI_Type_Register = &RegisterType;
    a.XLA_FFI_State_Set = &SetState;
    a.XLA_FFI_State_Get = &GetState;
    a.XLA_FFI_Stream_Get = &GetStream;
    a.XLA_FFI_DeviceOrdinal_Get = &GetOrdinal;
    return a;
  }();
  return api;
}

// The attributes of a call, which a frame refers to.
class Attributes final {
 public:
  void Set(const std::string& name, int64_t value) {
    integers_.push_back(std::make_unique<int64_t>(value));
    scalars_.push_back(std::make_unique<XLA_FFI_Scalar>(
        XLA_FFI_Scalar{XLA_FFI_DataType_S64, integers_.back().get()}));
    all_[name] = {XLA_FFI_AttrType_SCALAR, scalars_.back().get()};
  }
  void Set(const std::string& name, std::vector<int64_t> values) {
    vectors_.push_back(std::make_unique<std::vector<int64_t>>(std::move(values)));
    arrays_.push_back(std::make_unique<XLA_FFI_Array>(
        XLA_FFI_Array{XLA_FFI_DataType_S64, vectors_.back()->size(), vectors_.back()->data()}));
    all_[name] = {XLA_FFI_AttrType_ARRAY, arrays_.back().get()};
  }
  void Set(const std::string& name, const char* text) {
    spans_.push_back(std::make_unique<XLA_FFI_ByteSpan>(XLA_FFI_ByteSpan{text, std::strlen(text)}));
    all_[name] = {XLA_FFI_AttrType_STRING, spans_.back().get()};
  }
  void Fill(XLA_FFI_Attrs* attrs) {
    types_.clear(), names_.clear(), values_.clear(), name_spans_.clear();
    for (auto& [name, attribute] : all_) {
      name_spans_.push_back(
          std::make_unique<XLA_FFI_ByteSpan>(XLA_FFI_ByteSpan{name.data(), name.size()}));
      types_.push_back(attribute.first), values_.push_back(attribute.second);
      names_.push_back(name_spans_.back().get());
    }
    attrs->struct_size = XLA_FFI_Attrs_STRUCT_SIZE;
    attrs->size = static_cast<int64_t>(types_.size());
    attrs->types = types_.data(), attrs->names = names_.data(), attrs->attrs = values_.data();
  }

 private:
  std::map<std::string, std::pair<XLA_FFI_AttrType, void*>> all_;  // sorted, as XLA gives them
  std::vector<std::unique_ptr<int64_t>> integers_;
  std::vector<std::unique_ptr<XLA_FFI_Scalar>> scalars_;
  std::vector<std::unique_ptr<std::vector<int64_t>>> vectors_;
  std::vector<std::unique_ptr<XLA_FFI_Array>> arrays_;
  std::vector<std::unique_ptr<XLA_FFI_ByteSpan>> spans_, name_spans_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<XLA_FFI_ByteSpan*> names_;
  std::vector<void*> values_;
};

struct Array {
  XLA_FFI_DataType dtype{};
  std::vector<int64_t> dims;
  void* data = nullptr;
};

// One custom call of an executable over `ranks` devices of this process.
class CustomCall final {
 public:
  CustomCall(const char* kind, int64_t site, int64_t ranks, const char* reduction = "none",
             XLA_FFI_Handler* initialize = &UcclStreamInitialize,
             XLA_FFI_Handler* execute = &UcclStreamExecute)
      : initialize_(initialize), execute_(execute) {
    attributes_.Set("site", site);
    attributes_.Set("position", site);
    attributes_.Set("label", "test");
    attributes_.Set("module", "jit_test");
    attributes_.Set("kind", kind);
    attributes_.Set("group_size", ranks);
    std::vector<int64_t> devices;
    for (int64_t r = 0; r < ranks; ++r) devices.push_back(r);
    attributes_.Set("groups", devices);
    for (int64_t& d : devices) d += kFirstId;
    attributes_.Set("devices", devices);
    attributes_.Set("processes", std::vector<int64_t>(devices.size(), 0));
    attributes_.Set("ordered", int64_t{0});
    attributes_.Set("reduction", reduction);
    attributes_.Set("any_order", int64_t{0});
    attributes_.Set("permutation", std::vector<int64_t>{});
    attributes_.Set("root", int64_t{0});
    attributes_.Set("fill", int64_t{1});
  }
  ~CustomCall() {
    if (context_.state != nullptr) state_info->deleter(context_.state);
  }
  CustomCall(const CustomCall&) = delete;
  CustomCall& operator=(const CustomCall&) = delete;
  static constexpr int64_t kFirstId = 100;  // jax.Device.id of ordinal 0

  // "" or the message of the error.
  std::string Run(XLA_FFI_Handler* handler, XLA_FFI_ExecutionStage stage, int32_t ordinal,
                  HostStream* stream, const std::vector<Array>& args,
                  const std::vector<Array>& rets) {
    context_.ordinal = ordinal;
    context_.stream = stream == nullptr ? nullptr : stream->stream();
    std::vector<XLA_FFI_Buffer> buffers;
    for (const auto* list : {&args, &rets}) {
      for (const Array& a : *list) {
        buffers.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, a.dtype, a.data,
                           static_cast<int64_t>(a.dims.size()),
                           const_cast<int64_t*>(a.dims.data())});
      }
    }
    std::vector<void*> pointers;
    for (XLA_FFI_Buffer& b : buffers) pointers.push_back(&b);
    std::vector<XLA_FFI_ArgType> arg_types(args.size(), XLA_FFI_ArgType_BUFFER);
    std::vector<XLA_FFI_RetType> ret_types(rets.size(), XLA_FFI_RetType_BUFFER);
    XLA_FFI_CallFrame frame{};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &Api();
    frame.ctx = &context_;
    frame.stage = stage;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(args.size()),
                  arg_types.data(), pointers.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(rets.size()),
                  ret_types.data(), pointers.data() + args.size()};
    attributes_.Fill(&frame.attrs);
    const std::unique_ptr<XLA_FFI_Error> error(handler(&frame));
    return error == nullptr ? "" : error->message;
  }
  std::string Instantiate() {
    return Run(&UcclStreamInstantiate, XLA_FFI_ExecutionStage_INSTANTIATE, 0, nullptr, {}, {});
  }
  std::string Initialize(int32_t ordinal, const std::vector<Array>& args,
                         const std::vector<Array>& rets) {
    return Run(initialize_, XLA_FFI_ExecutionStage_INITIALIZE, ordinal, nullptr, args, rets);
  }
  std::string Execute(int32_t ordinal, HostStream* stream, const std::vector<Array>& args,
                      const std::vector<Array>& rets) {
    return Run(execute_, XLA_FFI_ExecutionStage_EXECUTE, ordinal, stream, args, rets);
  }

 private:
  XLA_FFI_Handler* const initialize_;
  XLA_FFI_Handler* const execute_;
  Attributes attributes_;
  XLA_FFI_ExecutionContext context_;
};

inline Array Floats(std::vector<float>* values) {
  return {XLA_FFI_DataType_F32, {static_cast<int64_t>(values->size())}, values->data()};
}
inline Array Integers(std::vector<int32_t>* values) {
  return {XLA_FFI_DataType_S32, {static_cast<int64_t>(values->size())}, values->data()};
}

// The runtime of this process, and a stream for each of its devices.
class OnStreams : public ::testing::Test {
 protected:
  OnStreams() : launchers_(cuda::HostLaunchers()) {
    Config config;
    config.executor = "fifo";
    EXPECT_TRUE(coll::TheRuntime().SetConfig(config).ok());
    EXPECT_TRUE(AttachDevice(&cuda::HostDevice(), {CustomCall::kFirstId, CustomCall::kFirstId + 1,
                                                   CustomCall::kFirstId + 2})
                    .ok());
    for (auto& stream : streams_) stream = std::make_unique<HostStream>(launchers_[0].get());
  }
  ~OnStreams() override { EXPECT_TRUE(coll::TheRuntime().Shutdown(Nanos(0)).ok()); }
  void Wait() {
    for (auto& stream : streams_) EXPECT_TRUE(stream->Wait().ok());
  }

  const std::vector<std::unique_ptr<cuda::Launcher>> launchers_;
  std::unique_ptr<HostStream> streams_[3];
};

}  // namespace uccl::xla_ffi::testing
