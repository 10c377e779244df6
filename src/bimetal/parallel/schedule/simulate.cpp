#include "bimetal/parallel/schedule/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "bimetal/base/error.h"

namespace bimetal::parallel::schedule {
namespace {

using Counts = std::vector<int>;

bool has_as_many(const Counts& of, const Counts& as) {
  return std::ranges::equal(of, as, std::greater_equal());
}

void keep_if_fullest(const Counts& counts, std::vector<Counts>& fullest) {
  const auto reaches = [&](const Counts& other) { return has_as_many(other, counts); };
  if (std::ranges::any_of(fullest, reaches)) return;
  std::erase_if(fullest, [&](const Counts& other) { return has_as_many(counts, other); });
  fullest.push_back(counts);
}

}  // namespace

std::vector<Counts> fullest_moments(std::span<const Action> actions, int chunks) {
  Counts kept(static_cast<std::size_t>(chunks));
  std::vector<Counts> fullest;
  bool grew = false;
  for (const auto& [what, micro_batch, chunk] : actions) {
    auto& own = kept[static_cast<std::size_t>(chunk)];
    if (what == What::forward) {
      ++own;
      grew = true;
    } else if (what != What::backward_input) {
      if (grew) keep_if_fullest(kept, fullest);
      grew = false;
      --own;
    }
  }
  if (grew || fullest.empty()) keep_if_fullest(kept, fullest);
  return fullest;
}

namespace {

/// The message that an action waits for, or leaves behind: (forward or backward, piece,
/// micro-batch).
using Message = std::tuple<bool, int, int>;

class Simulator {
 public:
  Simulator(const std::vector<Runs>& lists, int stages, std::span<const PieceCost> pieces)
      : lists_(lists),
        stages_(stages),
        pieces_(pieces),
        next_(lists.size()),
        clock_(lists.size()),
        kept_(lists.size()) {
    result_.stages.resize(lists.size());
    result_.busy.resize(lists.size());
    result_.peak.resize(lists.size());
  }

  Simulation run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t list = 0; list < lists_.size(); ++list) {
        while (step(list)) moved = true;
      }
    }
    finish();
    return std::move(result_);
  }

 private:
  int piece(std::size_t list, const Action& action) const {
    const int stage = lists_[list].stage;
    const int found = piece_of(stage, action.chunk, stages_);
    if (action.chunk < 0 || found >= static_cast<int>(pieces_.size())) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("{} of stage {}: there are costs of {} pieces alone",
                              to_string(action), stage, pieces_.size()));
    }
    return found;
  }

  static bool gives_gradients(What what) {
    return what == What::backward || what == What::backward_input;
  }

  /// The message that `action` needs of another piece, if any.
  std::optional<Message> needed(int piece, const Action& action) const {
    if (action.what == What::forward && piece > 0) {
      return Message{true, piece - 1, action.micro_batch};
    }
    if (gives_gradients(action.what) && piece + 1 < static_cast<int>(pieces_.size())) {
      return Message{false, piece + 1, action.micro_batch};
    }
    return std::nullopt;
  }

  /// Runs the list's next action; false if that has to wait, or there is none.
  bool step(std::size_t list) {
    const auto& [stage, actions, slowness] = lists_[list];
    if (next_[list] == actions.size()) return false;
    const auto& action = actions[next_[list]];
    const int place = piece(list, action);
    double begin = clock_[list];
    if (const auto message = needed(place, action)) {
      const auto found = arrived_.find(*message);
      if (found == arrived_.end()) return false;
      begin = std::max(begin, found->second);
    }
    ++next_[list];
    const double end = begin + slowness * seconds(place, action.what);
    clock_[list] = end;
    result_.stages[list].push_back({action, begin, end});
    result_.busy[list] += end - begin;
    keep(list, place, action.what);
    send(list, place, action, end);
    return true;
  }

  double seconds(int piece, What what) const {
    const auto& cost = pieces_[static_cast<std::size_t>(piece)];
    switch (what) {
      case What::forward: return cost.forward;
      case What::backward: return cost.backward_input + cost.backward_weight;
      case What::backward_input: return cost.backward_input;
      case What::backward_weight: return cost.backward_weight;
    }
    return 0;
  }

  void keep(std::size_t list, int piece, What what) {
    const double activations = pieces_[static_cast<std::size_t>(piece)].activations;
    if (what == What::forward) kept_[list] += activations;
    result_.peak[list] = std::max(result_.peak[list], kept_[list]);
    if (what == What::backward || what == What::backward_weight) kept_[list] -= activations;
  }

  void send(std::size_t list, int piece, const Action& action, double end) {
    if (action.what == What::backward_weight) return;
    const bool forward = action.what == What::forward;
    const auto& cost = pieces_[static_cast<std::size_t>(piece)];
    auto& free = link_free_[{list, (piece + (forward ? 1 : stages_ - 1)) % stages_}];
    free = std::max(free, end) + (forward ? cost.send_forward : cost.send_backward);
    arrived_[{forward, piece, action.micro_batch}] = free;
  }

  void finish() {
    for (std::size_t list = 0; list < lists_.size(); ++list) {
      result_.seconds = std::max(result_.seconds, clock_[list]);
      if (next_[list] == lists_[list].actions.size()) continue;
      const auto& action = lists_[list].actions[next_[list]];
      const auto message = needed(piece(list, action), action);
      const auto& [forward, from, micro_batch] = *message;
      if (!result_.deadlock.empty()) result_.deadlock += ", ";
      result_.deadlock +=
          fmt::format("stage {} waits for {} of piece {}", lists_[list].stage,
                      to_string({forward ? What::forward : What::backward, micro_batch}), from);
    }
    const double busy = std::accumulate(result_.busy.begin(), result_.busy.end(), 0.0);
    const double all = result_.seconds * static_cast<double>(lists_.size());
    result_.bubble = all > 0 ? 1 - busy / all : 0;
  }

  const std::vector<Runs>& lists_;
  const int stages_;
  std::span<const PieceCost> pieces_;
  std::vector<std::size_t> next_;
  std::vector<double> clock_, kept_;
  /// By sender and receiving stage: when the link is free.
  std::map<std::pair<std::size_t, int>, double> link_free_;
  std::map<Message, double> arrived_;
  Simulation result_;
};

}  // namespace

Simulation simulate(const std::vector<std::vector<Action>>& stages,
                    std::span<const PieceCost> pieces) {
  std::vector<Runs> all;
  for (const auto& actions : stages) all.push_back({static_cast<int>(all.size()), actions});
  return simulate(all, static_cast<int>(stages.size()), pieces);
}

Simulation simulate(const std::vector<Runs>& all, int stages, std::span<const PieceCost> pieces) {
  if (stages < 1 || pieces.empty() || pieces.size() % static_cast<std::size_t>(stages) != 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} stages cannot have {} pieces of a model: each has as many", stages,
                            pieces.size()));
  }
  return Simulator(all, stages, pieces).run();
}

double plain_bound(std::span<const double> pieces, int micro_batches, std::size_t stages) {
  double longest_stage = 0, longest_piece = 0, sum = 0;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    double own = 0;
    for (auto piece = stage; piece < pieces.size(); piece += stages) {
      own += pieces[piece];
      longest_piece = std::max(longest_piece, pieces[piece]);
    }
    longest_stage = std::max(longest_stage, own);
    sum += own;
  }
  const auto chunks = static_cast<double>(pieces.size() / stages);
  const double waiting = chunks * longest_piece - longest_stage;
  return micro_batches * longest_stage + (sum - longest_stage) / chunks +
         static_cast<double>(stages) / 2 * waiting;
}

double plain_bound(std::span<const PieceCost> pieces, int micro_batches, std::size_t stages) {
  std::vector<double> seconds;
  for (const auto& cost : pieces) {
    seconds.push_back(cost.forward + cost.backward_input + cost.backward_weight +
                      cost.send_forward + cost.send_backward);
  }
  return plain_bound(seconds, micro_batches, stages);
}

}  // namespace bimetal::parallel::schedule
