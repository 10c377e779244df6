#pragma once
// One set of parameters on its way from the servers to a worker. Private to the client.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {

struct IncomingParameters {
  /// Where they arrive, on the CPU; none until the set is first used.
  std::vector<torch::Tensor> memory;

  // Guarded by Arrivals::mutex:
  int shards_here = 0;
  std::uint64_t oldest = 0;          ///< version among the pieces that are here
  std::uint64_t newest = 0;          ///< version of a shard that is here
  std::vector<std::size_t> missing;  ///< pieces, per tensor

  // Of the I/O thread:
  std::uint64_t wanted = 0;  ///< version
  double steps_ahead = 0;    ///< of that version
  std::uint32_t term = 0;
  comm::Scheme scheme = comm::Scheme::none;  ///< that pieces were asked for in
  std::vector<bool> here;                    ///< pieces
  int unanswered = 0;                        ///< shards that are not all here

  /// Nothing of it is here. `pieces_of`: numbers of each tensor's pieces. With the mutex held.
  void expect(const std::vector<std::vector<std::uint32_t>>& pieces_of) {
    shards_here = 0;
    oldest = ~std::uint64_t{0};
    newest = 0;
    missing.clear();
    for (const auto& pieces : pieces_of) missing.push_back(pieces.size());
  }

  /// Whether every piece of the shard is here.
  bool has(const ShardPlan& plan, int shard) const {
    for (std::size_t i = 0; i < plan.pieces.size(); ++i) {
      if (plan.pieces[i].server == shard && !here[i]) return false;
    }
    return true;
  }
};

}  // namespace bimetal::parallel::server
