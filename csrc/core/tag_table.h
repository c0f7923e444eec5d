// Messages found by their tag. A tag should name one at a time; should there be more, they stand in
// line.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <unordered_set>

#include "csrc/core/message.h"
#include "csrc/core/ring.h"

namespace uccl::core {

// T has `info.tag` and a member `T* same_tag_next` that belongs to the table while T is in it.
template <class T>
class TagTable final {
 public:
  bool empty() const { return map_.empty(); }
  T* Front(const MessageTag& tag) const {
    const auto it = map_.find(tag);
    return it == map_.end() ? nullptr : it->second.first;
  }
  void Add(T* entry) {
    entry->same_tag_next = nullptr;
    const auto [it, fresh] = map_.try_emplace(entry->info.tag, Line{entry, entry});
    if (fresh) return;
    // Not by walking the line: a peer may make it long.
    it->second.last->same_tag_next = entry;
    it->second.last = entry;
  }
  // True when it was there.
  bool Remove(T* entry) {
    const auto it = map_.find(entry->info.tag);
    if (it == map_.end()) return false;
    Line& line = it->second;
    T* before = nullptr;
    T* at = line.first;
    while (at != nullptr && at != entry) {
      before = at;
      at = at->same_tag_next;
    }
    if (at == nullptr) return false;
    (before == nullptr ? line.first : before->same_tag_next) = entry->same_tag_next;
    if (line.last == entry) line.last = before;
    if (line.first == nullptr) map_.erase(it);
    return true;
  }
  void Clear() { map_.clear(); }

 private:
  struct Line {
    T* first;
    T* last;
  };
  std::unordered_map<MessageTag, Line, MessageTagHash> map_;
};

// Tags whose message was withdrawn on this side before anything of it came from the other, so that
// what comes is dropped instead of being kept for a receive (or a send) that will never be.
// Remembers the newest kCapacity.
class WithdrawnTags final {
 public:
  static constexpr size_t kCapacity = 4096;

  void Add(const MessageTag& tag) {
    if (!set_.insert(tag).second) return;
    order_.push_back(tag);
    // Tags that were taken are still in the queue; dropping one of those forgets nothing.
    if (order_.size() > kCapacity) {
      set_.erase(order_.front());
      order_.pop_front();
    }
  }
  // True once for a tag that was added.
  bool Take(const MessageTag& tag) { return !set_.empty() && set_.erase(tag) > 0; }

 private:
  std::unordered_set<MessageTag, MessageTagHash> set_;
  Ring<MessageTag> order_;
};

}  // namespace uccl::core
