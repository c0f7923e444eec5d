// memfd, seals and mappings.
#include "csrc/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

namespace uccl::shm {
namespace {

// "uccl shm", and the version of the layout and of the records (record.h) in the last byte.
constexpr uint64_t kMagic = 0x7563636c73686d03ull;
constexpr size_t kHeaderBytes = 4096;
constexpr size_t kSmallestRing = 4096;
static_assert(sizeof(SegmentHeader) <= kHeaderBytes);
static_assert(sizeof(RingHeader) <= kHeaderBytes);

Status SystemError(const std::string& what, int error = errno) {
  return Status::Error(StatusCode::kUnsupported,
                       what + ": " + std::generic_category().message(error));
}

void* Map(int fd, size_t offset, size_t bytes) {
  void* const at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  return at == MAP_FAILED ? nullptr : at;
}

}  // namespace

size_t Segment::SlotBytes() const { return kHeaderBytes + ring_bytes_; }

RingHeader* Segment::ring(uint32_t slot) const {
  return reinterpret_cast<RingHeader*>(slots_ + (slot - first_slot_) * SlotBytes());
}

std::byte* Segment::data(uint32_t slot) const {
  return slots_ + (slot - first_slot_) * SlotBytes() + kHeaderBytes;
}

Result<std::unique_ptr<Segment>> Segment::Make(size_t ring_bytes, int64_t eager_buffer_bytes,
                                               uint64_t nonce) {
  std::unique_ptr<Segment> segment(new Segment);
  segment->ring_bytes_ = std::bit_ceil(std::max(ring_bytes, kSmallestRing));
  segment->slots_bytes_ = kMaxLocalProcesses * segment->SlotBytes();
  segment->fd_ = memfd_create("jax_uccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment->fd_ < 0) return SystemError("memfd_create");
  if (ftruncate(segment->fd_, static_cast<off_t>(kHeaderBytes + segment->slots_bytes_)) != 0)
    return SystemError("sizing the shared segment");
  if (fcntl(segment->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return SystemError("sealing the shared segment");
  segment->header_ = static_cast<SegmentHeader*>(Map(segment->fd_, 0, kHeaderBytes));
  segment->slots_ = static_cast<std::byte*>(Map(segment->fd_, kHeaderBytes, segment->slots_bytes_));
  if (segment->header_ == nullptr || segment->slots_ == nullptr)
    return SystemError("mapping the shared segment");
  // Fresh memory is zero, which is what the atomics start with. Peers hear of the segment only
  // after this, by its address.
  new (segment->header_) SegmentHeader;
  segment->header_->nonce = nonce;
  segment->header_->ring_bytes = segment->ring_bytes_;
  segment->header_->slots = kMaxLocalProcesses;
  segment->header_->eager_buffer_bytes = eager_buffer_bytes;
  segment->header_->polling_core.store(kNoCore, std::memory_order_relaxed);
  segment->header_->magic = kMagic;
  return segment;
}

Result<std::unique_ptr<Segment>> Segment::Open(int64_t pid, int fd, uint64_t nonce, uint32_t slot) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return SystemError("opening " + path);
  std::unique_ptr<Segment> segment(new Segment);
  segment->fd_ = opened;  // closed by the destructor
  struct stat facts{};
  if (fstat(opened, &facts) != 0) return SystemError("looking at " + path);
  // Whatever the other process has behind that number now, only a sealed memory file of the right
  // size can be mapped without fear that it is cut later.
  const int seals = fcntl(opened, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      facts.st_size < static_cast<off_t>(kHeaderBytes)) {
    return Status::Error(StatusCode::kPeerLost, path + " is no shared segment (any more)");
  }
  segment->header_ = static_cast<SegmentHeader*>(Map(opened, 0, kHeaderBytes));
  if (segment->header_ == nullptr) return SystemError("mapping " + path);
  const SegmentHeader& header = *segment->header_;
  if (header.magic != kMagic) {
    return Status::Error(StatusCode::kProtocol,
                         path +
                             " has another layout; install the same version of jax_uccl "
                             "everywhere");
  }
  if (header.nonce != nonce)
    return Status::Error(StatusCode::kPeerLost, path + " belongs to another start of the process");
  segment->ring_bytes_ = header.ring_bytes;
  const size_t need = kHeaderBytes + header.slots * segment->SlotBytes();
  if (!std::has_single_bit(segment->ring_bytes_) || segment->ring_bytes_ < kSmallestRing ||
      header.slots != kMaxLocalProcesses || slot >= header.slots ||
      facts.st_size != static_cast<off_t>(need)) {
    return Status::Error(StatusCode::kProtocol, path + " describes itself wrongly");
  }
  segment->first_slot_ = slot;
  segment->slots_bytes_ = segment->SlotBytes();
  segment->slots_ = static_cast<std::byte*>(
      Map(opened, kHeaderBytes + slot * segment->SlotBytes(), segment->slots_bytes_));
  if (segment->slots_ == nullptr) return SystemError("mapping " + path);
  return segment;
}

Segment::~Segment() {
  if (slots_ != nullptr) munmap(slots_, slots_bytes_);
  if (header_ != nullptr) munmap(header_, kHeaderBytes);
  if (fd_ >= 0) close(fd_);
}

}  // namespace uccl::shm
