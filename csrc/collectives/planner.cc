// The choice of planner.h.
#include "csrc/collectives/planner.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "csrc/collectives/tuning_file.h"

namespace uccl::coll {
namespace {

Status Invalid(const std::string& text, const std::string& what) {
  return Status::Error(StatusCode::kInvalidArgument,
                       "setting algorithms=\"" + text + "\" (JAX_UCCL_ALGORITHMS) " + what);
}

std::string KindNames() {
  std::string names;
  for (OpKind kind : OpKinds())
    names += (names.empty() ? "" : ", ") + std::string(OpKindName(kind));
  return names;
}

// Only uniqueness matters, so relaxed order is enough.
std::atomic<uint64_t> next_policy{1};

}  // namespace

Result<AlgorithmChoices> ParseAlgorithms(const std::string& text) {
  AlgorithmChoices choices;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return Invalid(text, "holds \"" + std::string(item) +
                               "\", which is not of the form collective=algorithm");
    }
    const std::string kind_name(item.substr(0, equals)), name(item.substr(equals + 1));
    const std::optional<OpKind> kind = ParseOpKind(kind_name);
    if (!kind.has_value()) {
      return Invalid(text, "names the collective \"" + kind_name + "\"; there are " + KindNames());
    }
    const Algorithm* algorithm = FindAlgorithm(*kind, name);
    if (algorithm == nullptr) {
      return Invalid(text, "names the algorithm \"" + name + "\"; for " + kind_name +
                               " there are " + AlgorithmNames(*kind));
    }
    choices[*kind].push_back(algorithm);
  }
  return choices;
}

Result<std::vector<int32_t>> ParseHosts(const std::string& text) {
  constexpr uint64_t kMostProcesses = 1 << 20;
  const auto invalid = [&] {
    return Status::Error(StatusCode::kInvalidArgument,
                         "setting processes_per_host=\"" + text +
                             "\" (JAX_UCCL_PROCESSES_PER_HOST) is not a list of counts, such as "
                             "\"4,4,2\" or \"4(x2),2\", of at most " +
                             std::to_string(kMostProcesses) + " processes");
  };
  std::vector<int32_t> hosts;
  int32_t host = 0;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](uint64_t* value) {
    const auto [stop, error] = std::from_chars(at, end, *value);
    at = stop;
    return error == std::errc() && *value >= 1 && *value <= kMostProcesses;
  };
  const auto take = [&](std::string_view token) {
    const bool there = std::string_view(at, static_cast<size_t>(end - at)).starts_with(token);
    if (there) at += token.size();
    return there;
  };
  while (at != end) {
    uint64_t count = 0, times = 1;
    if (!number(&count)) return invalid();
    if (take("(x") && !(number(&times) && take(")"))) return invalid();
    if (hosts.size() + count * times > kMostProcesses) return invalid();
    for (uint64_t i = 0; i < times; ++i, ++host) hosts.insert(hosts.end(), count, host);
    if (at != end && (!take(",") || at == end)) return invalid();
  }
  return hosts;
}

Status CheckHosts(const PlanPolicy& policy, size_t processes) {
  if (policy.hosts.empty() || policy.hosts.size() == processes) return Status::Ok();
  return Status::Error(StatusCode::kInvalidArgument,
                       "setting processes_per_host (JAX_UCCL_PROCESSES_PER_HOST) adds up to " +
                           std::to_string(policy.hosts.size()) + " processes, the job has " +
                           std::to_string(processes) + "; correct it or leave it empty");
}

Result<std::shared_ptr<const PlanPolicy>> MakePolicy(const Config& config) {
  auto policy = std::make_shared<PlanPolicy>();
  policy->id = next_policy.fetch_add(1, std::memory_order_relaxed);
  Result<AlgorithmChoices> choices = ParseAlgorithms(config.algorithms);
  if (!choices.ok()) return choices.status();
  policy->choices = std::move(choices.value());
  if (!config.tuning_file.empty()) {
    const Result<CostParams> costs = ReadTuningFile(config.tuning_file);
    if (!costs.ok()) return costs.status();
    policy->costs = costs.value();
  }
  Result<std::vector<int32_t>> hosts = ParseHosts(config.processes_per_host);
  if (!hosts.ok()) return hosts.status();
  policy->hosts = std::move(hosts.value());
  return std::shared_ptr<const PlanPolicy>(std::move(policy));
}

Result<const Algorithm*> ChooseAlgorithm(const PlanRequest& request,
                                         const std::vector<Member>& group,
                                         const PlanPolicy& policy) {
  if (const auto it = policy.choices.find(request.kind); it != policy.choices.end()) {
    std::string names;
    for (const Algorithm* algorithm : it->second) {
      if (IsEligible(*algorithm, request)) return algorithm;
      names += (names.empty() ? "" : ", ") + std::string(algorithm->name);
    }
    return Status::Error(StatusCode::kInvalidArgument,
                         "the setting algorithms (JAX_UCCL_ALGORITHMS) allows only " + names +
                             " for " + OpKindName(request.kind) +
                             ", which add in an order of their own; " +
                             ReduceOpName(request.reduction) + " of " + DTypeName(request.dtype) +
                             " is reduced in one fixed order. Name another one after it, of " +
                             AlgorithmNames(request.kind));
  }
  std::vector<const Algorithm*> eligible;
  for (const Algorithm& algorithm : Algorithms()) {
    if (IsEligible(algorithm, request)) eligible.push_back(&algorithm);
  }
  // Where nothing travels they do the same, and the first does it with the fewest items.
  const bool alone = std::all_of(group.begin(), group.end(),
                                 [&](const Member& m) { return m.process == group[0].process; });
  const Algorithm* best = eligible[0];
  if (eligible.size() == 1 || alone || !Moves(request)) return best;
  uint64_t least = CostOf(policy.costs, *best, request, group);
  for (size_t i = 1; i < eligible.size(); ++i) {
    const uint64_t cost = CostOf(policy.costs, *eligible[i], request, group);
    if (cost >= least) continue;
    best = eligible[i];
    least = cost;
  }
  return best;
}

}  // namespace uccl::coll
