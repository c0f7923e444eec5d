// A reader of flat JSON objects, no more than the file needs: keys without escapes, integers,
// strings.
#include "csrc/collectives/tuning_file.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

namespace uccl::coll {
namespace {

class Reader final {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Result<CostParams> Read() {
    CostParams params;
    std::set<std::string> seen;
    if (!Take('{')) return Error("expected \"{\"");
    for (bool first = true; !Take('}'); first = false) {
      if (!first && !Take(',')) return Error("expected \",\" or \"}\"");
      std::string key;
      if (!TakeString(&key)) return Error("expected a key in quotes");
      if (!Take(':')) return Error("expected \":\" after \"" + key + "\"");
      if (!seen.insert(key).second) return Error("\"" + key + "\" is given twice");
      if (Status status = ReadValue(key, &params); !status.ok()) return status;
    }
    SkipSpace();
    if (at_ != text_.size()) return Error("expected the end of the file");
    if (!seen.contains(kVersionKey)) return Error("lacks \"" + std::string(kVersionKey) + "\"");
    return params;
  }

 private:
  static constexpr const char* kVersionKey = "jax_uccl_tuning";

  Status ReadValue(const std::string& key, CostParams* params) {
    if (key == "note") {
      std::string note;
      return TakeString(&note) ? Status::Ok() : Error("expected text in quotes for \"note\"");
    }
    const auto row = std::find_if(CostRows().begin(), CostRows().end(),
                                  [&](const CostRow& r) { return r.name == key; });
    if (row == CostRows().end() && key != kVersionKey) {
      std::string known;
      for (const CostRow& r : CostRows()) known += ", " + r.name;
      return Error("does not know \"" + key + "\"; there are note, " + kVersionKey + known);
    }
    SkipSpace();
    int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc()) return Error("expected an integer for \"" + key + "\"");
    at_ += static_cast<size_t>(end - begin);
    if (key == kVersionKey) {
      if (value == kTuningVersion) return Status::Ok();
      return Error("is of version " + std::to_string(value) + ", this is version " +
                   std::to_string(kTuningVersion) + "; measure again with jax-uccl bench --tune");
    }
    if (value < 0 || value > kMaxCostParam) {
      return Error("has " + key + "=" + std::to_string(value) + ", outside 0 to " +
                   std::to_string(kMaxCostParam));
    }
    params->*row->member = value;
    return Status::Ok();
  }

  void SkipSpace() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool Take(char c) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool TakeString(std::string* out) {
    if (!Take('"')) return false;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\' && ++at_ == text_.size()) return false;
      out->push_back(text_[at_]);
    }
    return Take('"');
  }
  Status Error(const std::string& what) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
    return Status::Error(StatusCode::kInvalidArgument, "the tuning file " + name_ + ", line " +
                                                           std::to_string(line) + ": " + what);
  }

  const std::string_view text_;
  const std::string name_;
  size_t at_ = 0;
};

}  // namespace

Result<CostParams> ParseTuning(std::string_view text, const std::string& name) {
  return Reader(text, name).Read();
}

Result<CostParams> ReadTuningFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "the tuning file " + path +
                             " (setting tuning_file, JAX_UCCL_TUNING_FILE) "
                             "cannot be read: " +
                             std::strerror(errno));
  }
  return ParseTuning(text, path);
}

}  // namespace uccl::coll
