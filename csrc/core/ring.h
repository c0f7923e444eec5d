// A queue in one block of memory that doubles when it is full and never shrinks, so that a queue
// whose length is bounded stops allocating; std::deque allocates for ever as it moves along.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace uccl::core {

template <class T>
class Ring final {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T& front() { return slots_[head_]; }
  const T& front() const { return slots_[head_]; }
  T& operator[](size_t i) { return slots_[(head_ + i) & (slots_.size() - 1)]; }

  void push_back(T value) {
    if (size_ == slots_.size()) Grow();
    (*this)[size_++] = std::move(value);
  }
  void pop_front() {
    slots_[head_] = T();  // what it owns goes now
    head_ = (head_ + 1) & (slots_.size() - 1);
    --size_;
  }
  void clear() {
    while (!empty()) pop_front();
  }
  // Keeps the order of the others.
  template <class Predicate>
  void EraseIf(Predicate predicate) {
    size_t kept = 0;
    for (size_t i = 0; i < size_; ++i) {
      if (predicate((*this)[i])) continue;
      if (kept != i) (*this)[kept] = std::move((*this)[i]);
      ++kept;
    }
    for (size_t i = kept; i < size_; ++i) (*this)[i] = T();
    size_ = kept;
  }

 private:
  void Grow() {
    std::vector<T> bigger(std::max<size_t>(slots_.size() * 2, 8));
    for (size_t i = 0; i < size_; ++i) bigger[i] = std::move((*this)[i]);
    slots_ = std::move(bigger);
    head_ = 0;
  }

  std::vector<T> slots_;  // size is a power of two
  size_t head_ = 0, size_ = 0;
};

}  // namespace uccl::core
