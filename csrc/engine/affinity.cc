// Lists of processors: text, check, distribution.
#include "csrc/engine/affinity.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

namespace uccl::engine {
namespace {

bool ParseNumber(std::string_view text, int* out) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && stop == end && *out >= 0 && *out < CPU_SETSIZE;
}

// False for what is no list.
bool ParseCpuList(std::string_view text, std::vector<int>* out) {
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const size_t dash = part.find('-');
    int first = 0, last = 0;
    if (!ParseNumber(part.substr(0, dash), &first)) return false;
    if (dash == std::string_view::npos) {
      last = first;
    } else if (!ParseNumber(part.substr(dash + 1), &last) || last < first) {
      return false;
    }
    for (int cpu = first; cpu <= last; ++cpu) out->push_back(cpu);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

std::vector<int> AllowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::string CpuListText(std::span<const int> cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(cpus[i]);
    if (last > i) text += "-" + std::to_string(cpus[last]);
    i = last + 1;
  }
  return text;
}

Result<std::vector<int>> PlanCpus(const std::string& setting, std::span<const int> allowed,
                                  int threads, int process, const char* name,
                                  const char* variable) {
  std::vector<int> plan;
  if (setting.empty()) return plan;
  const auto refuse = [&](const std::string& why) {
    return Status::Error(
        StatusCode::kInvalidArgument,
        std::string("setting ") + name + "=\"" + setting + "\" (" + variable + "): " + why);
  };
  if (setting == "auto") {
    if (allowed.empty()) return refuse("the system does not tell which CPUs may be used");
    const size_t before = static_cast<size_t>(process) * static_cast<size_t>(threads);
    for (int i = 0; i < threads; ++i) {
      plan.push_back(allowed[(before + static_cast<size_t>(i)) % allowed.size()]);
    }
    return plan;
  }
  std::vector<int> wanted;
  if (!ParseCpuList(setting, &wanted)) {
    return refuse("give \"auto\", a list of CPUs such as \"3,5-7\", or nothing");
  }
  for (const int cpu : wanted) {
    if (std::find(allowed.begin(), allowed.end(), cpu) == allowed.end()) {
      return refuse("CPU " + std::to_string(cpu) +
                    " is not among those that this process may use: " + CpuListText(allowed));
    }
  }
  for (int i = 0; i < threads; ++i) plan.push_back(wanted[static_cast<size_t>(i) % wanted.size()]);
  return plan;
}

}  // namespace uccl::engine
