#pragma once
// A group's all-reduce over its connections: chooses the algorithm and runs it.
//
// Measures the links between the ranks of a group. Pairs of ranks exchange messages, first short
// ones, then longer ones until one takes long enough to be measured.

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

  /// The algorithm that every rank must ask for; part of each call's fingerprint.
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

/// The group's plan, the same on all ranks: rank 0 makes it. `leaves_host` says whether this rank
/// is connected with any other by more than its own machine; nothing is measured where no rank is.
/// The links are those between `measuring`, some or all of the ranks, rank 0 among them: the plan
/// is for these. Part of a call: every rank of the channel does it as its first step. Costs some
/// tenths of a second on slow links, a round of short messages on one host.
LinkPlan agree_on_plan(Channel& channel, bool leaves_host, const std::vector<int>& measuring);

}  // namespace bimetal::comm
