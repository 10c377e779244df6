#pragma once
// A group's all-reduce over its connections: chooses the algorithm and runs it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/comm/algorithm.h"
#include "bimetal/comm/algorithms/islands.h"
#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// Used by the thread that runs the group's calls alone.
class AllReducer {
 public:
  /// `leaves_host`: whether a connection of this rank's leaves the machine. `hosts`: which ranks
  /// share one by its name, every rank once, the same on all ranks.
  AllReducer(Algorithm asked, bool leaves_host, std::vector<std::vector<int>> hosts)
      : asked_(asked), leaves_host_(leaves_host), hosts_(std::move(hosts)) {}

  /// Before the first run, on all ranks alike: some ranks have memory in common, but not all.
  void use_islands(Islands islands) { islands_ = std::move(islands); }

  /// What every rank must ask for alike; part of each call's fingerprint.
  Algorithm asked() const noexcept { return asked_; }

  /// `data` becomes the reduction over all ranks, in the same bits on each.
  void run(Channel& channel, std::span<std::byte> data, const Reduction& reduction);

 private:
  Algorithm choose(Channel& channel, std::size_t bytes);
  Algorithm choose_with_islands(Channel& channel, std::size_t bytes);
  std::vector<std::uint32_t> weights(std::size_t number) const;
  void run_two_level(Channel& channel, std::span<std::byte> data, const Reduction& reduction) const;

  const Algorithm asked_;
  const bool leaves_host_;
  const std::vector<std::vector<int>> hosts_;
  std::optional<Islands> islands_;
  std::optional<LinkPlan> plan_;
};

}  // namespace bimetal::comm
