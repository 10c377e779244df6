#include "bimetal/parallel/server/shard_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bimetal/base/error.h"

namespace bimetal::parallel::server {
namespace {

void check_plan(std::span<const std::int64_t> tensors, std::span<const double> weights,
                std::int64_t piece_elements) {
  const bool weights_fit = std::ranges::all_of(
      weights, [](double weight) { return std::isfinite(weight) && weight > 0; });
  const bool sizes_fit = std::ranges::all_of(tensors, [](auto count) { return count >= 0; });
  if (!weights.empty() && weights_fit && sizes_fit && piece_elements >= 1) return;
  throw Error(
      ErrorCode::InvalidArgument,
      "a plan of shards needs servers with weights above 0, tensors of no negative size and "
      "pieces of at least one element");
}

std::vector<Piece> cut(std::span<const std::int64_t> tensors, std::int64_t piece_elements) {
  std::vector<Piece> pieces;
  for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const auto total = tensors[tensor];
    const auto count = (total + piece_elements - 1) / piece_elements;
    const auto whole = count > 0 ? total / count : 0, rest = count > 0 ? total % count : 0;
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto size = whole + (i < rest ? 1 : 0);
      pieces.push_back({.tensor = tensor, .offset = begin, .count = size});
      begin += size;
    }
  }
  return pieces;
}

}  // namespace

ShardPlan plan_shards(std::span<const std::int64_t> tensor_elements,
                      std::span<const double> server_weights, std::int64_t piece_elements) {
  check_plan(tensor_elements, server_weights, piece_elements);
  ShardPlan plan{cut(tensor_elements, piece_elements),
                 std::vector<std::int64_t>(server_weights.size(), 0)};
  std::vector<std::size_t> order(plan.pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return plan.pieces[a].count > plan.pieces[b].count;
  });
  auto load = plan.shard_elements;
  for (const auto index : order) {
    Piece& piece = plan.pieces[index];
    const auto finish = [&](std::size_t server) {
      return static_cast<double>(load[server] + piece.count) / server_weights[server];
    };
    std::size_t best = 0;
    for (std::size_t server = 1; server < load.size(); ++server) {
      if (finish(server) < finish(best)) best = server;
    }
    piece.server = static_cast<int>(best);
    load[best] += piece.count;
  }
  // Within a shard the pieces lie in the order of the forward pass.
  for (Piece& piece : plan.pieces) {
    auto& end = plan.shard_elements[static_cast<std::size_t>(piece.server)];
    piece.shard_offset = end;
    end += piece.count;
  }
  return plan;
}

namespace {

double checked(double rate) {
  if (rate > 0 && std::isfinite(rate)) return rate;
  throw Error(ErrorCode::InvalidArgument, "a measured rate must be above 0 and finite");
}

/// Two digits: the processes of a job compare them, and people read them.
double rounded(double weight) {
  return std::max(std::round(weight * 100) / 100, kLeastWeight);
}

}  // namespace

std::vector<double> weights_of(std::span<const std::vector<LinkRate>> rates) {
  if (rates.empty() || rates.front().empty()) {
    throw Error(ErrorCode::InvalidArgument, "weights need rates of a worker and a server at least");
  }
  std::vector<double> seconds(rates.front().size(), 0);  // per byte up and down, over all workers
  for (const auto& row : rates) {
    if (row.size() != seconds.size()) {
      throw Error(ErrorCode::InvalidArgument, "every worker must have measured every server");
    }
    for (std::size_t k = 0; k < row.size(); ++k) {
      seconds[k] += 1 / checked(row[k].up) + 1 / checked(row[k].down);
    }
  }
  std::vector<std::size_t> order(seconds.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t k) { return seconds[k]; });
  const double fastest = seconds[order.front()];
  std::vector<double> weights(seconds.size());
  double first = fastest;  // of those that count as equal
  for (const auto k : order) {
    if (seconds[k] > first * kAlike) first = seconds[k];
    weights[k] = rounded(fastest / first);
  }
  return weights;
}

}  // namespace bimetal::parallel::server
