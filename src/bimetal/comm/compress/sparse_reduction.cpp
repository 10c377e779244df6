// All-gather of each rank's largest elements; every rank adds up all lists in the order of ranks.
#include <algorithm>
#include <cmath>
#include <vector>

#include "bimetal/comm/compress/compressed_reduction.h"
#include "bimetal/comm/compress/error_feedback.h"
#include "bimetal/comm/compress/top_k.h"

namespace bimetal::comm {
namespace {

// Puts this rank's gradient where the largest elements are chosen from.
std::span<float> accumulated(std::span<float> data, const Compression& compression) {
  if (!compression.memory) return data;
  auto& [residual, velocity, basis] = *compression.memory;
  residual.resize(data.size());
  if (compression.momentum > 0) {
    velocity.resize(data.size());
    add_with_momentum(data, static_cast<float>(compression.momentum), velocity, residual);
  } else {
    add(residual, data);
  }
  return residual;
}

// What is sent is no longer owed, and has no momentum left that is owed (momentum factor masking,
// Lin et al. §3.3).
void settle(BucketMemory& memory, std::span<const std::uint32_t> sent) {
  const bool finite =
      std::ranges::all_of(sent, [&](std::uint32_t i) { return std::isfinite(memory.residual[i]); });
  for (auto* values : {&memory.residual, &memory.velocity}) {
    if (values->empty()) continue;
    for (const std::uint32_t i : sent) (*values)[i] = 0;
    // Elements that are not finite are sent first: if none was, there is none.
    if (!finite) forget_not_finite(*values);
  }
}

// Nothing has to be left out where nothing is sent: plain momentum.
void take_all(std::span<float> data, const Compression& compression) {
  const auto values = accumulated(data, compression);
  if (values.data() == data.data()) return;
  std::ranges::copy(values, data.begin());
  std::ranges::fill(values, 0.0f);
  forget_not_finite(compression.memory->velocity);
}

}  // namespace

void sparse_all_reduce(Channel& channel, std::span<float> data, ReduceOp op,
                       const Compression& compression) {
  if (channel.size() == 1) return take_all(data, compression);
  const std::size_t k = kept_elements(compression.density, data.size());
  std::vector<std::span<std::byte>> lists;
  std::vector<Channel::Ticket> tickets(channel.size());
  for (int rank = 0; rank < channel.size(); ++rank) {
    lists.push_back(channel.scratch(list_bytes(k)));
    if (rank != channel.rank()) tickets[rank] = channel.receive(rank, lists[rank]);
  }

  const auto values = accumulated(data, compression);
  const auto chosen = largest_elements(values, k);
  const auto own = lists[channel.rank()];
  encode_list(values, chosen, own);
  for (int step = 1; step < channel.size(); ++step) channel.send(channel.neighbour(step), own);
  if (compression.memory) settle(*compression.memory, chosen);

  std::ranges::fill(data, 0.0f);
  for (int rank = 0; rank < channel.size(); ++rank) {
    if (rank != channel.rank()) channel.wait(tickets[rank]);
    add_list(lists[rank], data);
  }
  if (op == ReduceOp::avg) {
    const auto ranks = static_cast<float>(channel.size());
    for (float& value : data) value /= ranks;
  }
  channel.wait_sent();
}

}  // namespace bimetal::comm
