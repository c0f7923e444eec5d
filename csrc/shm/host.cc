// Identity of the host, and the text of an address.
#include "csrc/shm/host.h"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <fstream>
#include <string_view>
#include <system_error>

#include "csrc/base/hash.h"

namespace uccl::shm {
namespace {

constexpr std::string_view kPrefix = "shm/1:";

}  // namespace

std::string EncodeAddress(const Address& a) {
  std::string text(kPrefix);
  const std::array<uint64_t, 5> fields = {a.host, static_cast<uint64_t>(a.pid),
                                          static_cast<uint64_t>(a.fd), a.nonce, a.probe};
  for (size_t i = 0; i < fields.size(); ++i) {
    std::array<char, 20> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), fields[i], 16).ptr;
    text.append(i > 0 ? ":" : "").append(digits.data(), end);
  }
  return text;
}

Result<Address> DecodeAddress(const std::string& text) {
  const Status malformed = Status::Error(
      StatusCode::kInvalidArgument, "a process published the shared-memory address \"" + text +
                                        "\", which is none of this "
                                        "version; install the same version of jax_uccl everywhere");
  if (!text.starts_with(kPrefix)) return malformed;
  std::array<uint64_t, 5> fields{};
  const char* at = text.data() + kPrefix.size();
  const char* const end = text.data() + text.size();
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0 && (at == end || *at++ != ':')) return malformed;
    const auto [stop, error] = std::from_chars(at, end, fields[i], 16);
    if (error != std::errc()) return malformed;
    at = stop;
  }
  if (at != end) return malformed;
  return Address{fields[0], static_cast<int64_t>(fields[1]), static_cast<int64_t>(fields[2]),
                 fields[3], fields[4]};
}

Result<uint64_t> HostIdentity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) {
    return Status::Error(StatusCode::kUnsupported,
                         "/proc/sys/kernel/random/boot_id cannot be read, so that processes of "
                         "one host would not know each other");
  }
  if (prctl(PR_GET_DUMPABLE) != 1) {
    return Status::Error(StatusCode::kUnsupported,
                         "this process is not dumpable (prctl PR_SET_DUMPABLE), so that others "
                         "may not open its memory");
  }
  Hasher hasher;
  hasher.Text(boot);
  for (const char* name : {"/proc/self/ns/pid", "/proc/self/ns/user"}) {
    struct stat facts{};
    if (stat(name, &facts) != 0) {
      return Status::Error(StatusCode::kUnsupported, std::string(name) + " cannot be read: " +
                                                         std::generic_category().message(errno));
    }
    hasher.Word(facts.st_dev).Word(facts.st_ino);
  }
  hasher.Word(geteuid()).Word(getuid()).Word(getegid()).Word(getgid());
  return hasher.Finish64();
}

}  // namespace uccl::shm
