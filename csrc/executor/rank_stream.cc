// The order of rank_stream.h.
#include "csrc/executor/rank_stream.h"

#include <vector>

namespace uccl::executor {

void RankStream::Enqueue(uint64_t number, std::unique_ptr<Program> program,
                         std::function<void(const Status&)> done) {
  Status failure;
  bool start = false;
  {
    std::lock_guard lock(mutex_);
    if (number >= failed_from_) {
      failure = failure_;
    } else {
      items_.emplace(number, Item{std::move(program), std::move(done)});
      start = !running_ && number == next_;
      running_ |= start;
    }
  }
  if (!failure.ok()) {
    program.reset();
    return done(failure);
  }
  if (start) spawn_([self = shared_from_this()] { self->Run(); });
}

void RankStream::Run() {
  for (;;) {
    Item item;
    uint64_t number = 0;
    {
      std::lock_guard lock(mutex_);
      const auto it = items_.begin();
      if (it == items_.end() || it->first != next_) {
        running_ = false;
        return;
      }
      number = next_++;
      item = std::move(it->second);
      items_.erase(it);
    }
    const Status status = item.program->Run(pipes_.get(), number);
    item.program.reset();
    if (!status.ok()) FailFrom(number, status);
    item.done(status);
  }
}

void RankStream::FailFrom(uint64_t number, const Status& cause) {
  std::vector<Item> waiting;
  bool interrupt = false;
  {
    std::lock_guard lock(mutex_);
    if (number < failed_from_) {
      failed_from_ = number;
      failure_ = cause;
    }
    const auto first = items_.lower_bound(number);
    for (auto it = first; it != items_.end(); ++it) waiting.push_back(std::move(it->second));
    items_.erase(first, items_.end());
    // Programs before `number` may run still or be yet to come, and need the pipes.
    interrupt = next_ > number || (next_ == number && !running_);
  }
  if (interrupt) pipes_->Fail(cause);
  for (Item& item : waiting) {
    item.program.reset();
    item.done(cause);
  }
}

}  // namespace uccl::executor
