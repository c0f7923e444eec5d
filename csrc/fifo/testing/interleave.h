// A model checker for algorithms over NativeMemory's interface: runs them in every interleaving,
// with every value that each load may return on a weakly ordered machine, and remembers states.
//
// The machine. Memory keeps, for each word, the list of all values ever stored. Each thread has a
// view: for each word, how far down the list it has seen; a load may return any entry from there
// on, so threads see old values until something orders them. A release store carries the view of
// its thread, an acquire load that meets it takes that view over; relaxed ones carry nothing. A
// fetch-add reads the newest entry and carries on the view of what it replaces. This is
// release-acquire C++ with relaxed accesses, without consume and fences.
//
// What it cannot show: threads execute their loads in program order, and a store comes after the
// loads before it. So a need for release that rests only on a load being delayed past a later store
// (load buffering) is not found; such orders stay in the code by argument.
//
// How. A thread is a function of what its operations returned. Its local state is therefore the
// list of these results, and running it from its beginning with that list leads to its next
// operation. States (memory, views, lists) are explicit, hashed and visited once. A wait
// (WaitUntil) whose predicate fails forgets the results of that try, so waiting does not make
// states without end.
//
// Checked: what the threads assert with Require, in every state; and that from every state all
// threads can still finish (no deadlock, no lost wake-up).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/base/hash.h"

namespace uccl::fifo::testing {

// What one replay of a thread has come to.
struct Operation {
  enum class Kind : uint8_t { kLoad, kStore, kFetchAdd, kFinished, kRetry };
  Kind kind = Kind::kFinished;
  bool ordered = false;  // acquire load, release store
  const uint64_t* word = nullptr;
  uint64_t value = 0;       // to store or to add
  size_t keep_results = 0;  // of kRetry
};

struct Violation {
  std::string what;
};

// The memory that a thread of the model sees. Copies share the replay.
class ModelMemory {
 public:
  struct Replay {
    const std::vector<uint64_t>* results = nullptr;
    size_t next = 0;
  };
  explicit ModelMemory(Replay* replay) : replay_(replay) {}

  uint64_t LoadRelaxed(const uint64_t* p) { return Do({Operation::Kind::kLoad, false, p}); }
  uint64_t LoadAcquireSystem(const uint64_t* p) { return Do({Operation::Kind::kLoad, true, p}); }
  uint64_t LoadAcquireDevice(const uint64_t* p) { return LoadAcquireSystem(p); }
  void StoreRelaxed(uint64_t* p, uint64_t v) { Do({Operation::Kind::kStore, false, p, v}); }
  void StoreReleaseSystem(uint64_t* p, uint64_t v) { Do({Operation::Kind::kStore, true, p, v}); }
  void StoreReleaseDevice(uint64_t* p, uint64_t v) { StoreReleaseSystem(p, v); }
  void StorePairReleaseSystem(uint64_t* pair, uint64_t v0, uint64_t v1) {
    StoreReleaseSystem(pair, v0);
    StoreReleaseSystem(pair + 1, v1);
  }
  uint64_t FetchAddDevice(uint64_t* p, uint64_t v) {
    return Do({Operation::Kind::kFetchAdd, false, p, v});
  }
  template <class Predicate>
  void WaitUntil(Predicate predicate) {
    const size_t before = replay_->next;
    if (!predicate()) throw Operation{Operation::Kind::kRetry, false, nullptr, 0, before};
  }
  void Require(bool holds, const char* what) {
    if (!holds) throw Violation{what};
  }

 private:
  // The result of an operation that was done before, else the end of this replay.
  uint64_t Do(Operation operation) {
    if (replay_->next == replay_->results->size()) throw operation;
    return (*replay_->results)[replay_->next++];
  }
  Replay* replay_;
};

struct Exploration {
  size_t states = 0, transitions = 0;
  bool complete = false;  // false: more states than allowed
  std::string violation;  // empty: none found
};

class Explorer final {
 public:
  using Thread = std::function<void(ModelMemory)>;

  void Add(Thread thread) { threads_.push_back(std::move(thread)); }

  Exploration Run(size_t max_states) {
    Exploration result;
    std::vector<std::pair<uint32_t, State>> open;
    std::vector<std::pair<uint32_t, uint32_t>> edges;
    std::vector<uint32_t> finals;
    State start;
    start.threads.resize(threads_.size());
    open.emplace_back(Number(start).first, start);
    while (!open.empty()) {
      const auto [from, state] = std::move(open.back());
      open.pop_back();
      bool finished = true;
      for (size_t t = 0; t < threads_.size(); ++t) {
        Operation operation;
        try {
          operation = Next(t, state.threads[t].results);
        } catch (const Violation& violation) {
          result.violation = violation.what;
          result.states = numbers_.size();
          return result;
        }
        if (operation.kind == Operation::Kind::kFinished) continue;
        finished = false;
        for (State& to : Step(state, t, operation)) {
          ++result.transitions;
          const auto [number, fresh] = Number(to);
          edges.emplace_back(number, from);
          if (fresh) open.emplace_back(number, std::move(to));
        }
      }
      if (finished) finals.push_back(from);
      if (numbers_.size() > max_states) {
        result.states = numbers_.size();
        return result;
      }
    }
    result.states = numbers_.size();
    result.complete = true;
    if (!AllCanFinish(&edges, finals)) result.violation = "a state from which not all threads end";
    return result;
  }

 private:
  // How many entries of each word's list a thread has passed; by word.
  using View = std::vector<uint8_t>;
  struct Entry {
    uint64_t value;
    View view;
  };
  struct State {
    std::vector<std::vector<Entry>> words;  // each begins with an entry of value 0
    struct ThreadState {
      std::vector<uint64_t> results;
      View view;
    };
    std::vector<ThreadState> threads;
  };

  static void Join(View* view, const View& other) {
    if (view->size() < other.size()) view->resize(other.size());
    for (size_t i = 0; i < other.size(); ++i) (*view)[i] = std::max((*view)[i], other[i]);
  }
  static void Raise(View* view, size_t word, size_t to) {
    if (view->size() <= word) view->resize(word + 1);
    (*view)[word] = std::max((*view)[word], static_cast<uint8_t>(to));
  }

  // Words are numbered as they are met; the numbers stay equal in all states.
  size_t WordOf(const uint64_t* p) {
    return word_numbers_.emplace(p, word_numbers_.size()).first->second;
  }

  Operation Next(size_t t, const std::vector<uint64_t>& results) {
    const auto known = next_.find({t, results});
    if (known != next_.end()) return known->second;
    ModelMemory::Replay replay{&results};
    Operation operation;
    try {
      threads_[t](ModelMemory(&replay));
    } catch (const Operation& stopped_at) {
      operation = stopped_at;
    }
    next_.emplace(std::pair(t, results), operation);
    return operation;
  }

  std::vector<State> Step(const State& state, size_t t, const Operation& operation) {
    std::vector<State> after;
    if (operation.kind == Operation::Kind::kRetry) {
      after.push_back(state);
      after[0].threads[t].results.resize(operation.keep_results);
      return after;
    }
    const size_t word = WordOf(operation.word);
    State base = state;
    if (base.words.size() <= word) base.words.resize(word + 1, {Entry{0, {}}});
    View& view = base.threads[t].view;
    if (view.size() <= word) view.resize(word + 1);
    std::vector<Entry>& entries = base.words[word];
    switch (operation.kind) {
      case Operation::Kind::kLoad:
        for (size_t i = view[word]; i < entries.size(); ++i) {
          State& next = after.emplace_back(base);
          State::ThreadState& thread = next.threads[t];
          Raise(&thread.view, word, i);
          if (operation.ordered) Join(&thread.view, entries[i].view);
          thread.results.push_back(entries[i].value);
        }
        return after;
      case Operation::Kind::kStore: {
        Raise(&view, word, entries.size());
        Entry entry{operation.value, operation.ordered ? view : View()};
        Raise(&entry.view, word, entries.size());
        entries.push_back(std::move(entry));
        base.threads[t].results.push_back(0);
        break;
      }
      case Operation::Kind::kFetchAdd: {
        const uint64_t before = entries.back().value;
        Raise(&view, word, entries.size());
        Entry entry{before + operation.value, entries.back().view};
        Raise(&entry.view, word, entries.size());
        entries.push_back(std::move(entry));
        base.threads[t].results.push_back(before);
        break;
      }
      case Operation::Kind::kFinished:
      case Operation::Kind::kRetry:
        return after;
    }
    after.push_back(std::move(base));
    return after;
  }

  // The number of a state, and whether it is new.
  std::pair<uint32_t, bool> Number(const State& state) {
    Hasher hasher;
    const auto add_view = [&hasher](const View& view) {
      size_t used = view.size();
      while (used > 0 && view[used - 1] == 0) --used;
      hasher.Word(used);
      for (size_t i = 0; i < used; ++i) hasher.Word(view[i]);
    };
    for (const State::ThreadState& thread : state.threads) {
      hasher.Word(thread.results.size());
      for (const uint64_t result : thread.results) hasher.Word(result);
      add_view(thread.view);
    }
    for (size_t word = 0; word < state.words.size(); ++word) {
      const std::vector<Entry>& entries = state.words[word];
      if (entries.size() == 1) continue;  // never stored to: as if not met yet
      hasher.Word(word).Word(entries.size());
      for (const Entry& entry : entries) {
        hasher.Word(entry.value);
        add_view(entry.view);
      }
    }
    // 128 bits: two states of some millions share one with a chance of 1e-25.
    const auto [it, fresh] =
        numbers_.emplace(hasher.Finish128(), static_cast<uint32_t>(numbers_.size()));
    return {it->second, fresh};
  }

  // Whether the finals are reached from everywhere; `edges` point backwards.
  bool AllCanFinish(std::vector<std::pair<uint32_t, uint32_t>>* edges,
                    const std::vector<uint32_t>& finals) const {
    std::ranges::sort(*edges);
    std::vector<char> reached(numbers_.size());
    std::vector<uint32_t> open = finals;
    for (const uint32_t state : finals) reached[state] = 1;
    size_t count = finals.size();
    while (!open.empty()) {
      const uint32_t to = open.back();
      open.pop_back();
      for (auto it = std::ranges::lower_bound(*edges, std::pair<uint32_t, uint32_t>(to, 0));
           it != edges->end() && it->first == to; ++it) {
        if (std::exchange(reached[it->second], 1)) continue;
        ++count;
        open.push_back(it->second);
      }
    }
    return count == numbers_.size();
  }

  std::vector<Thread> threads_;
  std::map<std::pair<size_t, std::vector<uint64_t>>, Operation> next_;
  std::map<const uint64_t*, size_t> word_numbers_;
  struct Fold {
    size_t operator()(const Hash128& hash) const { return hash.lo; }
  };
  std::unordered_map<Hash128, uint32_t, Fold> numbers_;
};

}  // namespace uccl::fifo::testing
