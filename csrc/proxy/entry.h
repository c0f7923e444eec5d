// What a proxy keeps for a registered region: its receiving side, its FIFOs, and the messages of it
// that the engine holds.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/proxy/inbound.h"
#include "csrc/proxy/put_note.h"
#include "csrc/proxy/region.h"

namespace uccl::proxy {

class Fifo;

struct Entry {
  Entry(uint32_t id_in, std::shared_ptr<Region> region_in, uint32_t window)
      : id(id_in), region(std::move(region_in)), inbound(region, window) {}

  // A message that the engine holds for this region.
  struct Held {
    ProcessId peer{};
    bool is_send = false;
    PutNote note;
  };
  // Before a message is handed to the engine; HandedOver must follow when it was. False once the
  // region is being unregistered: nothing more may be handed over.
  bool Hold(uint64_t token, const Held& message) {
    std::lock_guard lock(mutex);
    if (closing) return false;
    held.emplace(token, message);
    ++handing;
    return true;
  }
  // Not under the lock that Hold takes: the engine may answer in the same call.
  void HandedOver() {
    std::lock_guard lock(mutex);
    if (--handing == 0) idle.notify_all();
  }
  // Once closing: until the engine knows of all that is held.
  void AwaitHandedOver() {
    std::unique_lock lock(mutex);
    idle.wait(lock, [this] { return handing == 0; });
  }
  // False for a token that is not, or no longer, held.
  bool Release(uint64_t token, Held* message) {
    std::lock_guard lock(mutex);
    const auto it = held.find(token);
    if (it == held.end()) return false;
    *message = it->second;
    held.erase(it);
    return true;
  }
  Fifo* FindFifo(uint16_t number) {
    std::lock_guard lock(mutex);
    return number < fifos.size() ? fifos[number].get() : nullptr;
  }

  const uint32_t id;
  const std::shared_ptr<Region> region;
  Inbound inbound;

  std::mutex mutex;  // guards all below
  bool closing = false;
  int handing = 0;  // messages between Hold and HandedOver
  std::condition_variable idle;
  std::unordered_map<uint64_t, Held> held;  // by token
  std::vector<std::shared_ptr<Fifo>> fifos;
  // The FIFO whose barrier command is under way, by channel.
  std::array<Fifo*, 64> in_barrier{};
};

}  // namespace uccl::proxy
