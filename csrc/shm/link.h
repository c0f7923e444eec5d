// The messages between this process and one other of its host: tags are matched, small messages
// copied through the rings, large ones fetched. The meaning of every call and event is that of
// core::Connection; what goes over the rings is in record.h.
//
// Threads: any thread may call; one mutex guards the state and is held for bounded work only (some
// records, copies of at most a ring's content). Large copies run outside it: a thread claims a
// piece of a fetch, copies it, and reports it finished, so several threads can share one message
// and a short one is never stuck behind a long one. Events and callbacks are handed out by Drain
// and Finish and run by their caller without the mutex.
//
// Ownership of buffers. A receive buffer is ours to write from PostRecv until its event, and a
// fetch that was cancelled ends only when no thread copies into it. A send buffer is read by the
// peer's process on its own: after kOffer it is the peer's until it says kDone, kRefused or
// kDropped, so a cancelled send waits for one of them. Two things end that wait early: the peer has
// died, or this side gives the link up. The latter is written into shared memory before any buffer
// is let go, and the peer looks there after each fetch, so it never takes stale memory for the
// message.
//
//   open --kLeaving arrives--> left --something outstanding--> failed ("shut down")
//     \--the process died, went silent, gave up, or broke the protocol--> failed
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/message.h"
#include "csrc/shm/peer_process.h"
#include "csrc/shm/record.h"
#include "csrc/shm/ring.h"
#include "csrc/shm/segment.h"

namespace uccl::shm {

// What a message kept for a later receive counts beyond its bytes, against eager_buffer_bytes.
inline constexpr int64_t kKeptOverheadBytes = 128;
inline constexpr size_t kMaxControlBytes = 512;

struct LinkOptions {
  ProcessId peer{};
  uint64_t session = 0;
  size_t eager_max_bytes = 0;      // larger messages are offered, others sent at once
  int64_t eager_buffer_bytes = 0;  // this side keeps at most so much that no receive has met
  bool one_copy = false;           // the kernel lets this process read the peer's memory
  Nanos peer_silence{};
};

struct LinkStats {
  uint64_t messages_sent = 0, messages_received = 0;  // whole ones
  uint64_t bytes_sent = 0, bytes_received = 0;        // payload of those
  uint64_t fetched_bytes = 0;   // of the received: in one copy out of the peer's memory
  uint64_t lent_messages = 0;   // of the received: read where they were, and given back
  uint64_t fragment_bytes = 0;  // of the sent: through the ring in several records
  uint64_t ring_full = 0;       // times that a record had to wait
  uint64_t unexpected_messages = 0, kept_bytes = 0;  // now
  bool one_copy = false;
};

// What happened, to be handed on without any lock. kFailed stands for the loss of the peer,
// kArrived is for the sink as well.
struct Deliveries {
  std::vector<core::Event> events;
  std::vector<std::function<void()>> freed;  // callbacks of Cancel
};

class Link final {
 public:
  // `theirs` was opened for this process's slot; `incoming` is the ring in our own segment that the
  // peer writes.
  Link(const LinkOptions& options, std::unique_ptr<Segment> theirs,
       std::unique_ptr<PeerProcess> process, RingReader incoming);

  ProcessId peer() const { return options_.peer; }

  void Send(const core::MessageInfo& info, Bytes data, uint64_t token);
  // With `borrow` a large message that this process can read where it is stays there: kRecvDone
  // then has its `address`, nothing is written to `buffer`, and the sender waits until Return.
  void PostRecv(const core::MessageInfo& info, MutableBytes buffer, uint64_t token,
                bool borrow = false);
  // Any part of the peer's memory, on any thread.
  Status Read(MutableBytes to, uint64_t address) const { return process_->Read(to, address); }
  // The token's message is not needed any more. `read` is how the Reads went. Ok when all of them
  // read the message; once for each that was lent, unless it is cancelled.
  Status Return(uint64_t token, const Status& read);
  // True when the buffer is free now (also when the token is not outstanding here); otherwise
  // `freed` comes with a later delivery.
  [[nodiscard]] bool Cancel(bool is_send, uint64_t token, std::function<void()> freed);
  // As core::Connection::Discard, for a receive.
  void Discard(const core::MessageTag& tag);
  // A small text (cut to kMaxControlBytes), handed out there as kControl and in order with what
  // else is sent. Dropped where the peer is lost or has left. Whoever was handed one says so by
  // ControlTaken with the event's token; this side is not Drained before that, so a peer has always
  // seen why this side leaves before it sees that it does.
  void SendControl(std::string control);
  void ControlTaken(uint64_t token);

  // Reads what came, writes what waited. False when there was nothing to do, or another thread is
  // at it. Without `early`, messages stay in the ring while nothing here waits for the peer: read
  // before their receives are posted they would be copied once more.
  bool Drain(Deliveries* out, bool early = true);

  // A part of a large message to copy, if any waits.
  struct Piece {
    uint64_t id = 0;
    uint64_t address = 0;
    MutableBytes to;
  };
  std::optional<Piece> Claim();
  Status Copy(const Piece& piece) const { return Read(piece.to, piece.address); }
  void Finish(const Piece& piece, const Status& status, Deliveries* out);

  // Hints for threads that poll; no lock.
  bool HasWork() const;
  bool HasPiece() const { return pieces_.load(std::memory_order_seq_cst) > 0; }
  // Whether anything of ours waits for the peer: else nobody here misses what it may have sent.
  bool Waiting() const { return waiting_.load(std::memory_order_seq_cst); }

  // Looks whether the peer lives and its thread turns; to be called now and then while Waiting().
  void Check(Nanos now, Deliveries* out);
  void Fail(const Status& status);

  // Shutdown. Leave: says that nothing more comes; Abort: reports what is outstanding, without a
  // kFailed.
  bool Drained() const;
  void Leave();
  bool Left() const;  // Leave's record is in the ring, or need not be
  void Abort(const Status& status);

  std::vector<core::MessageInfo> Unexpected() const;
  LinkStats stats() const;
  // SegmentHeader::polling_core of the peer.
  int polling_core() const {
    return theirs_->header()->polling_core.load(std::memory_order_relaxed);
  }

 private:
  struct Outgoing {
    enum class State : uint8_t { kQueued, kOffered, kStreaming, kDropped, kWithdrawn };
    State state{};
    core::MessageInfo info;
    Bytes data;
    uint64_t token = 0;
    uint64_t streamed = 0;
    std::function<void()> freed;  // of a withdrawn one
  };
  struct Posted {
    core::MessageInfo info;
    MutableBytes buffer;
    uint64_t token = 0;
    bool borrow = false;
  };
  struct Kept {  // met no receive yet
    core::MessageInfo info;
    uint64_t order = 0;
    std::vector<std::byte> bytes;  // may be its first part only
    bool offered = false;
    uint64_t id = 0;       // of an offer, or of a message in several records
    uint64_t address = 0;  // of an offer
    bool whole() const { return !offered && bytes.size() == info.size_bytes; }
  };
  struct Fetch {
    core::MessageInfo info;
    MutableBytes buffer;
    uint64_t token = 0, address = 0;
    uint64_t claimed = 0, received = 0;
    int copying = 0;  // threads
    bool cancelled = false, streamed = false;
    bool lent = false;  // reported, and not returned yet
    std::function<void()> freed;
  };
  struct Note {  // a record without payload, or a message to be sent, that waits for room
    RecordKind kind{};
    uint64_t id = 0;
    RecordInfo info;
  };

  // All below with the mutex held.
  void Queue(const Note& note);
  bool Write(const Note& note);
  bool WriteMessage(uint64_t id);
  enum class Eager : uint8_t { kWhole, kBegun, kNoRoom, kNot };
  Eager WriteEager(uint64_t id, Outgoing* out);
  size_t PartBytes(size_t overhead) const;
  bool Stream();
  bool Flush();
  void Commit(bool urgent);
  void Publish();
  bool Read(bool early);
  bool Wanted() const;
  bool OnRecord(const RingReader::Record& record);
  bool OnMessage(const RingReader::Record& record);
  bool OnOffer(const RingReader::Record& record);
  bool OnFragment(const RingReader::Record& record);
  bool KeepMessage(const core::MessageInfo& info, uint64_t id, Bytes bytes);
  bool KeepFragment(uint64_t id, uint64_t offset, Bytes bytes);
  bool OnControl(const RingReader::Record& record);
  bool OnRefused(const RingReader::Record& record);
  void OnAnswer(RecordKind kind, uint64_t id);
  void OnLeaving();
  void Accept(const Posted& posted, const Kept& offer);
  Fetch* Open(const Posted& posted, const core::MessageInfo& info, uint64_t id);
  void Begin(const Posted& posted, const core::MessageInfo& info, uint64_t id, Bytes bytes);
  void Append(uint64_t id, Fetch* fetch, Bytes bytes);
  bool Mismatch(const Posted& posted, const core::MessageInfo& info);
  void Conclude(uint64_t id);
  bool WasMessage();
  void Break(const std::string& what);
  void FailLocked(Status status);
  void FinishFailing();
  void Place(const Posted& posted, const core::MessageInfo& info, Bytes bytes);
  bool TakeDiscarded(const core::MessageTag& tag);
  // What a delivery is to bring.
  void Push(core::Event event);
  void Report(core::EventKind kind, uint64_t token, const Status& status);
  void Announce(const core::MessageInfo& info);
  void Sent(const Outgoing& out);
  void Received(uint64_t token, const core::MessageInfo& info);
  void CountReceived(const core::MessageInfo& info);
  void Differ(uint64_t token, const core::MessageInfo& remote);
  void Free(std::function<void()> freed);
  void ReturnCredit(uint64_t bytes);
  void Release(const Kept& kept);
  void NoticeEnd(bool alive);
  bool GaveUp() const;
  void Hand(Deliveries* out);
  void Silence(uint64_t token);
  // Holds the mutex, and at its end tells those who do not whether anything is outstanding.
  class Locked final {
   public:
    explicit Locked(Link* link) : link_(link), lock_(link->mutex_) {}
    Locked(Link* link, std::try_to_lock_t t) : link_(link), lock_(link->mutex_, t) {}
    ~Locked() {
      if (!lock_.owns_lock()) return;
      link_->waiting_.store(link_->Outstanding() || !link_->controls_.empty(),
                            std::memory_order_seq_cst);
    }
    bool owns_lock() const { return lock_.owns_lock(); }

   private:
    Link* const link_;
    std::unique_lock<std::mutex> lock_;
  };
  bool Outstanding() const { return !outgoing_.empty() || !posted_.empty() || !fetches_.empty(); }
  Status ShutDownStatus() const;

  const LinkOptions options_;
  const std::unique_ptr<Segment> theirs_;
  const std::unique_ptr<PeerProcess> process_;

  mutable std::mutex mutex_;  // guards all below but the atomics
  RingReader reader_;
  RingWriter writer_;
  std::unordered_map<uint64_t, Outgoing> outgoing_;  // by id
  std::deque<Note> backlog_;
  std::deque<uint64_t> streams_;                        // ids, in turn
  std::unordered_map<uint64_t, std::string> controls_;  // by id, until the peer has seen them
  std::unordered_map<core::MessageTag, Posted, core::MessageTagHash> posted_;
  std::unordered_map<core::MessageTag, Kept, core::MessageTagHash> kept_;
  std::unordered_map<uint64_t, core::MessageTag> arriving_;  // kept in part, by the peer's id
  std::unordered_map<uint64_t, Fetch> fetches_;              // by the peer's id
  std::deque<uint64_t> to_copy_;                             // fetches with unclaimed bytes
  std::unordered_set<core::MessageTag, core::MessageTagHash> discarded_;
  std::deque<core::MessageTag> discarded_order_;
  Deliveries ready_;
  uint64_t next_id_ = 1, next_order_ = 0;
  uint64_t eager_sent_ = 0;  // with overhead, since the beginning
  int64_t kept_bytes_ = 0;   // likewise, of kept_
  LinkStats stats_;

  bool published_ = false;         // records the peer was not told of
  bool published_urgent_ = false;  // one of them is urgent
  bool left_ = false, leaving_ = false, aborting_ = false;
  bool failed_ = false, any_failed_ = false, told_ = false;
  Status failure_;
  uint64_t seen_turns_ = 0;
  Nanos turned_at_ = kNever;

  // Written under the mutex, read as hints by those who do not hold it.
  std::atomic<bool> waiting_{false};
  std::atomic<bool> has_ready_{false};
  std::atomic<bool> ended_{false};  // failed, or left: nothing more is read
  std::atomic<int> pieces_{0};
  std::atomic<bool> blocked_{false};
  std::atomic<uint64_t> blocked_head_{0};
};

}  // namespace uccl::shm
