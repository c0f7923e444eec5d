// Messages between the processes of one host, over shared memory: the links to all of them, and the
// thread that serves the links while nobody else does.
//
// Whoever waits for a message may serve the links itself (Poll, within a PollScope): then a small
// message arrives without any thread being woken, and a large one is copied by the thread that
// needs it. The own thread ("uccl-shm") sleeps meanwhile, and takes over when the last such thread
// has left. It sleeps on the doorbell of this process's segment, without a timeout when no message
// is outstanding.
//
// Peers ring only while something here waits for them (and when a ring is full): what comes early
// stays in the ring until an operation wants it, and programs in step with each other wake nobody.
// What is urgent (record.h), such as a put that nobody here asks for, rings whenever nobody looks.
//
// Sleep and wake-up. `asleep_` says that the thread sleeps or is about to, `pollers_` how many
// others serve, and `sleeping` in the segment whether peers must ring. A call that makes something
// wait rings the thread itself, unless others serve; so does the last poller, if it leaves
// anything, else it puts the word `sleeping` back for the sleeping thread. The thread sets asleep_,
// then looks at pollers_ and at what waits; they change those first and look at asleep_ then; all
// sequentially consistent, so one of the two sees the other.
//
// Any thread may call. Callbacks run on the own thread or in Poll, never under a lock, and must not
// block.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/base/core_yield.h"
#include "csrc/base/spin_policy.h"
#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/message.h"
#include "csrc/shm/host.h"
#include "csrc/shm/link.h"
#include "csrc/shm/segment.h"

namespace uccl::shm {

class Sink {
 public:
  virtual ~Sink() = default;
  // As engine::EngineSink.
  virtual void OnMessage(ProcessId peer, const core::Event& event) = 0;
  virtual void OnControl(ProcessId peer, const std::string& control) = 0;
  virtual void OnArrival(ProcessId peer, const core::MessageInfo& info) = 0;
  virtual void OnPeerLost(ProcessId peer, const Status& status) = 0;
};

class Messenger final {
 public:
  // kUnsupported, with the reason, where this process cannot share memory. `sink` must outlive it.
  static Result<std::unique_ptr<Messenger>> Start(const Config& config, Sink* sink);
  ~Messenger();  // like Shutdown(0)

  // To publish. Processes that hold no such text, or one of another host, are not reached.
  std::string LocalAddress() const;
  // `addresses[i]` is that of process i, empty where it has none. Once.
  Status Connect(ProcessId self, const std::vector<std::string>& addresses, uint64_t session);
  // After Connect.
  bool Reaches(ProcessId peer) const { return FindLink(peer) != nullptr; }
  int peers() const {
    return connected_.load(std::memory_order_acquire) ? static_cast<int>(served_.size()) : 0;
  }

  // As engine::Engine; the peer must be reached. Results come through Poll or the own thread.
  void Send(ProcessId peer, const core::MessageInfo& info, Bytes data, uint64_t token);
  void PostRecv(ProcessId peer, const core::MessageInfo& info, MutableBytes buffer, uint64_t token,
                bool borrow = false);
  // What was borrowed; see link.h.
  Status Read(ProcessId peer, MutableBytes to, uint64_t address) const {
    return FindLink(peer)->Read(to, address);
  }
  Status Return(ProcessId peer, uint64_t token, const Status& read);
  // Cut to kMaxControlBytes. Shutdown waits until the peer's sink has had it.
  void SendControl(ProcessId peer, std::string control);
  // True when the buffer is free at once; otherwise `freed` runs later.
  [[nodiscard]] bool Cancel(ProcessId peer, bool is_send, uint64_t token,
                            std::function<void()> freed);
  void Discard(ProcessId peer, const core::MessageTag& tag);
  void FailPeer(ProcessId peer, const Status& status);

  // Serves the links on this thread: some records, at most one piece of a large message for each.
  // False when there was nothing to do.
  bool Poll();
  // While it lives, this thread promises to call Poll again and again.
  class PollScope final {
   public:
    explicit PollScope(Messenger* messenger);
    ~PollScope();
    PollScope(const PollScope&) = delete;
    PollScope& operator=(const PollScope&) = delete;
    // Nothing to do: offers the core to others. If a peer's thread took it that polls as well,
    // while another core has fewer of them, this thread moves there.
    void Yield();

   private:
    Messenger* const messenger_;
  };

  struct Unexpected {
    ProcessId peer{};
    core::MessageInfo info;
  };
  std::vector<Unexpected> Inspect();
  std::map<int32_t, LinkStats> Stats() const;

  // Waits until what was handed in is with the peers or `timeout` passed, says goodbye, reports the
  // rest with kAborted, and waits for callbacks under way. kPeerTimeout names who took too long.
  Status Shutdown(Nanos timeout);

 private:
  Messenger(const Config& config, std::unique_ptr<Segment> segment, const Address& address,
            std::unique_ptr<uint64_t> probe, Sink* sink);
  Link* FindLink(ProcessId peer) const;
  Result<std::unique_ptr<Link>> OpenLink(ProcessId peer, const Address& address,
                                         uint32_t their_slot, uint32_t my_slot,
                                         uint64_t session) const;
  bool ServeAll(bool early);
  bool Serve(Link* link, bool early);
  void Deliver(Link* link, Deliveries* deliveries);
  bool HasWork() const;
  bool Waiting() const;
  void NudgeThread(Link* link);
  void Loop();
  void Sleep();
  void CheckLinks(Nanos now);
  void LeaveSharedCore(Nanos now);

  const Config config_;
  const std::unique_ptr<Segment> segment_;
  const Address address_;
  // What `address_.probe` points at: peers read it to see whether they may.
  const std::unique_ptr<uint64_t> probe_;
  Sink* const sink_;

  // Fixed by Connect, before the flag is set (release) that lets others look (acquire).
  ProcessId self_{};
  std::vector<std::unique_ptr<Link>> links_;  // by process; null where there is none
  std::vector<Link*> served_;
  int most_copiers_ = 1;
  std::atomic<bool> connected_{false};

  std::atomic<int> pollers_{0};
  std::atomic<bool> asleep_{false};
  std::atomic<int> copiers_{0};             // threads that copy large messages
  std::atomic<Nanos> next_move_{Nanos(0)};  // of a thread that polls, to another core
  std::atomic<bool> stopping_{false};
  std::atomic<int> serving_{0};  // threads inside Serve, for Shutdown to wait for
  std::mutex stop_mutex_;        // one Shutdown at a time
  std::thread thread_;

  // Of the own thread.
  SpinPolicy spin_;
  CoreYield yield_;
  Nanos next_check_{0};
};

}  // namespace uccl::shm
