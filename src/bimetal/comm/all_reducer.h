#pragma once
// A group's all-reduce over its connections: chooses the algorithm and runs it.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "bimetal/comm/algorithm.h"
#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/channel.h"
#include "bimetal/comm/cost_model.h"

namespace bimetal::comm {

/// Used by the thread that runs the group's calls alone.
class AllReducer {
 public:
  /// `leaves_host`: whether a connection of this rank's leaves the machine. `islands`: which ranks
  /// share one, every rank once, the same on all ranks.
  AllReducer(Algorithm asked, bool leaves_host, std::vector<std::vector<int>> islands)
      : asked_(asked), leaves_host_(leaves_host), islands_(std::move(islands)) {}

  /// What every rank must ask for alike; part of each call's fingerprint.
  Algorithm asked() const noexcept { return asked_; }

  /// `data` becomes the reduction over all ranks, in the same bits on each.
  void run(Channel& channel, std::span<std::byte> data, const Reduction& reduction);

 private:
  Algorithm choose(Channel& channel, std::size_t bytes);

  const Algorithm asked_;
  const bool leaves_host_;
  const std::vector<std::vector<int>> islands_;
  std::optional<LinkPlan> plan_;
};

}  // namespace bimetal::comm
