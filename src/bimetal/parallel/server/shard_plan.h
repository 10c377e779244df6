#pragma once
// Which server keeps which elements of which tensor. Pure: every process of a job computes the same
// plan from the same arguments, so it is never sent.

#include <cstdint>
#include <span>
#include <vector>

namespace bimetal::parallel::server {

/// A run of one tensor's elements (row-major), kept by one server.
struct Piece {
  std::uint32_t tensor = 0;
  std::int64_t offset = 0;  ///< within the tensor, in elements
  std::int64_t count = 0;
  int server = 0;
  std::int64_t shard_offset = 0;  ///< within the server's shard, in elements

  friend bool operator==(const Piece&, const Piece&) = default;
};

struct ShardPlan {
  std::vector<Piece> pieces;                 ///< by tensor, then by offset
  std::vector<std::int64_t> shard_elements;  ///< per server
};

/// Small enough to spread one large tensor evenly and to start sending early, large enough that
/// headers cost nothing (256 KiB of float32).
inline constexpr std::int64_t kPieceElements = std::int64_t{1} << 16;

/// Cuts tensors longer than `piece_elements` into equal pieces and deals the pieces out, the
/// largest first, each to the server that then has the least load for its weight. Tensors without
/// elements get no piece. Error(InvalidArgument) for no server, a weight that is not above 0, a
/// negative size or piece_elements < 1.
ShardPlan plan_shards(std::span<const std::int64_t> tensor_elements,
                      std::span<const double> server_weights,
                      std::int64_t piece_elements = kPieceElements);

// The part of the parameters that each server keeps, by the bandwidth of its link. Pure.

/// Bytes per second between a worker and a server.
struct LinkRate {
  double up = 0;    ///< towards the server
  double down = 0;  ///< from it
};

/// Rates that differ by no more than this factor count as equal: noise is to make no odd plans.
inline constexpr double kAlike = 1.25;
/// No server is left with less than this fraction of the fastest one's part.
inline constexpr double kLeastWeight = 0.01;

/// Weights of the servers, 1 for the fastest, such that a step's traffic, as many bytes up as down
/// and the same for each worker, takes every link as long. `rates[i][k]`: between worker i and
/// server k. Error(InvalidArgument) for no worker or server, rows of unequal length, or a rate that
/// is not above 0 and finite.
std::vector<double> weights_of(std::span<const std::vector<LinkRate>> rates);

}  // namespace bimetal::parallel::server
