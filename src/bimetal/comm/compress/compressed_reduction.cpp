#include "bimetal/comm/compress/compressed_reduction.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/compress/dense_reduction.h"
#include "bimetal/comm/compress/top_k.h"
#include "bimetal/comm/fabric.h"
#include "bimetal/comm/reduce/reduce_kernels.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {
namespace {

void reduce_by_scheme(Channel& channel, std::span<float> data, ReduceOp op,
                      const Compression& compression) {
  if (is_dense(compression.scheme)) return dense_all_reduce(channel, data, op, compression);
  if (compression.scheme == Scheme::topk) return sparse_all_reduce(channel, data, op, compression);
  low_rank_all_reduce(channel, data, op, compression);
}

/// One call, on data that are float32 or become so.
struct Reduction32 {
  Channel& channel;
  ReduceOp op;
  const Compression& compression;
  const Islands& islands;

  void run(std::span<float> data) const {
    if (compression.links == CompressedLinks::all) {
      return reduce_by_scheme(channel, data, op, compression);
    }
    island_all_reduce(channel, data, op, islands, compression,
                      [this](Channel& between, std::span<float> sums) {
                        reduce_by_scheme(between, sums, ReduceOp::sum, compression);
                      });
  }

  template <typename T>
  void run(std::span<T> data) const {
    std::vector<float> floats(data.size());
    std::ranges::transform(data, floats.begin(), [](T value) { return static_cast<float>(value); });
    run(std::span(floats));
    std::ranges::transform(floats, data.begin(), [](float value) { return static_cast<T>(value); });
  }
};

}  // namespace

void compressed_all_reduce(Channel& channel, Buffer data, ReduceOp op,
                           const Compression& compression, const Islands& islands) {
  const Reduction32 reduction{channel, op, compression, islands};
  const auto elements = [&]<typename T>(T) {
    return std::span(static_cast<T*>(data.data), data.count);
  };
  switch (data.dtype) {
    case DType::float32: return reduction.run(elements(float{}));
    case DType::float64: return reduction.run(elements(double{}));
    case DType::float16: return reduction.run(elements(Float16{}));
    case DType::bfloat16: return reduction.run(elements(BFloat16{}));
    default: throw Error(ErrorCode::Internal, "a compressed call with integers");
  }
}

namespace {

// The first rank of the island keeps the island's residual in its own memory. The others' parts of
// a sum over all ranks are zeros.
void keep_nothing(const Compression& compression, std::size_t count) {
  if (!compression.memory) return;
  compression.memory->residual.assign(count, 0.0f);
  if (compression.momentum > 0) compression.memory->velocity.assign(count, 0.0f);
}

}  // namespace

void island_all_reduce(Channel& channel, std::span<float> data, ReduceOp op, const Islands& islands,
                       const Compression& compression, const CompressedSum& between) {
  auto inside = channel.among(island_of(islands.ranks, channel.rank()));
  ChannelGuard guard(inside);
  const auto bytes = std::as_writable_bytes(data);
  const Lanes one_lane{bytes.size(), 1};
  std::optional<LaneReduction> team;
  if (islands.team) {
    islands.team->begin(channel.call(), guard);
    team.emplace(*islands.team, bytes, one_lane, DType::float32, ReduceOp::sum, guard);
    team->reduce(0, one_lane.chunks());
  }
  if (inside.rank() == 0) {
    auto firsts_only = channel.among(first_ranks(islands.ranks));
    between(firsts_only, data);
  } else {
    keep_nothing(compression, data.size());
  }
  if (team) team->spread(0, one_lane.chunks());
  if (op == ReduceOp::sum) return;
  const auto ranks = static_cast<float>(channel.size());
  for (float& value : data) value /= ranks;
}

// All-gather of each rank's largest elements; every rank adds up all lists in the order of ranks.

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

// Sent values leave the residual, and their momentum is cleared (momentum factor masking, Lin et
// al. §3.3).
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
