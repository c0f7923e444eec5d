// See merge_stats.h.
#include "csrc/engine/merge_stats.h"

#include <algorithm>

namespace uccl::engine {
namespace {

void Merge(const core::ConnectionStats& from, core::ConnectionStats* into) {
#define UCCL_ADD(field) into->field += from.field
  UCCL_ADD(packets_sent);
  UCCL_ADD(packets_received);
  UCCL_ADD(bytes_sent);
  UCCL_ADD(bytes_received);
  UCCL_ADD(payload_bytes_sent);
  UCCL_ADD(payload_bytes_received);
  UCCL_ADD(retransmits_fast);
  UCCL_ADD(retransmits_timeout);
  UCCL_ADD(spurious_retransmits);
  UCCL_ADD(duplicates);
  UCCL_ADD(out_of_window);
  UCCL_ADD(wrong_key);
  UCCL_ADD(malformed);
  UCCL_ADD(bad_checksum);
  UCCL_ADD(timeouts);
  UCCL_ADD(tail_probes);
  UCCL_ADD(probes);
  UCCL_ADD(path_probes);
  UCCL_ADD(acks_sent);
  UCCL_ADD(acks_received);
  UCCL_ADD(eager_bytes_buffered);
  UCCL_ADD(unexpected_messages);
  UCCL_ADD(credits_sent);
  UCCL_ADD(requests_to_send);
  UCCL_ADD(credit_wanted_bytes);
  UCCL_ADD(credit_received_bytes);
  UCCL_ADD(credit_used_bytes);
  UCCL_ADD(credit_void_bytes);
  UCCL_ADD(credit_granted_bytes);
  UCCL_ADD(credit_outstanding_bytes);
  UCCL_ADD(inflight_bytes);
  UCCL_ADD(window_bytes);
#undef UCCL_ADD
  if (from.srtt_ns > into->srtt_ns) {
    into->srtt_ns = from.srtt_ns;
    into->rttvar_ns = from.rttvar_ns;
  }
  into->paths.insert(into->paths.end(), from.paths.begin(), from.paths.end());
}

// 32 sums, two round trips, the paths: a new counter needs a line above and a new number here.
static_assert(sizeof(core::ConnectionStats) ==
              34 * sizeof(uint64_t) + sizeof(std::vector<core::PathStats>));

void Merge(const nic::NicStats& from, nic::NicStats* into) {
  into->send_calls += from.send_calls;
  into->receive_calls += from.receive_calls;
  into->datagrams_sent += from.datagrams_sent;
  into->datagrams_received += from.datagrams_received;
  into->segmented_packets += from.segmented_packets;
  into->segmented_datagrams += from.segmented_datagrams;
  into->joined_packets += from.joined_packets;
  into->joined_datagrams += from.joined_datagrams;
  into->segmentation_refused += from.segmentation_refused;
  into->segmentation |= from.segmentation;
  into->receive_offload |= from.receive_offload;
}

}  // namespace

void MergeStats(const EngineStats& from, EngineStats* into) {
  for (const auto& [process, peer] : from.peers) Merge(peer, &into->peers[process]);
  into->turns += from.turns;
  into->sleeps += from.sleeps;
  into->unknown_key_drops += from.unknown_key_drops;
  into->commands += from.commands;
  into->engines += from.engines;
  into->cpus.insert(into->cpus.end(), from.cpus.begin(), from.cpus.end());
  Merge(from.nic, &into->nic);
}

}  // namespace uccl::engine
