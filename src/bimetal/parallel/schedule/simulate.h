#pragma once
// The time and memory of a schedule, without running it: for tests of schedules, and to choose
// among them.

#include <span>
#include <string>
#include <vector>

#include "bimetal/parallel/schedule/schedule.h"

namespace bimetal::parallel::schedule {

// Which activations a list of actions keeps at a time.

/// The moments with most micro-batches between forward and the end of backward, as a number for
/// each of `chunks` chunks. These are all moments of the list for which no other has as many or
/// more of each. One chunk has one such moment. With several, the chunks' sizes decide which is
/// fullest.
std::vector<std::vector<int>> fullest_moments(std::span<const Action> actions, int chunks);

/// The cost of one micro-batch in one piece of the model, on the device that has it. Seconds and
/// bytes of any unit.
struct PieceCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double send_forward = 0;   ///< its outputs to the piece behind it
  double send_backward = 0;  ///< its inputs' gradients to the piece before it
  double activations = 1;    ///< kept from forward to the end of backward
};

/// The runner of a list: a stage, or one of its replicas.
struct Runs {
  int stage = 0;
  std::vector<Action> actions;
  double slowness = 1;  ///< what pieces cost here, in terms of their PieceCost
};

/// An action and when it ran.
struct Timed {
  Action action;
  double begin = 0, end = 0;
};

struct Simulation {
  std::vector<std::vector<Timed>> stages;  ///< by list, as far as they came
  double seconds = 0;                      ///< from the first action to the end of the last
  std::vector<double> busy;                ///< seconds in which each computed
  /// Part of the time, over all of them, in which nothing was computed.
  double bubble = 0;
  std::vector<double> peak;  ///< of each: most activations kept at a time
  /// Empty if all ran. Else who waits for what: "stage 1 waits for F3 of stage 0, …".
  std::string deadlock;
};

/// Runs the stages' lists, each in its order and as early as its inputs allow. Sending takes no
/// time of a stage; the link from one stage to another carries one message at a time in each
/// direction, in the order of sending, for all chunks. `pieces` has stages · chunks entries, in the
/// model's order. Error(InvalidArgument) if it has not, or for actions of pieces that are not
/// there.
Simulation simulate(const std::vector<std::vector<Action>>& stages,
                    std::span<const PieceCost> pieces);
/// The same for `stages` stages, each of which may have several replicas: from each of them a link
/// of its own goes to the stages beside its own.
Simulation simulate(const std::vector<Runs>& all, int stages, std::span<const PieceCost> pieces);

/// About the time of a step of these pieces, each a micro-batch's forward, backward and sending, in
/// the model's order: (m − 1) · max tᵢ + Σ tᵢ, tᵢ being stage i's. 1F1B and GPipe take exactly that
/// if all stages are alike and sending costs nothing. Interleaved over v chunks, with tᵢ for all of
/// a stage's pieces: m · max tᵢ and a v-th of the other stages' time, which is exact if all pieces
/// are alike. Added is half of a round of the time by which the longest piece, v times, exceeds max
/// tᵢ: the micro-batches of a round wait for it.
double plain_bound(std::span<const double> pieces, int micro_batches, std::size_t stages);
double plain_bound(std::span<const PieceCost> pieces, int micro_batches, std::size_t stages);

}  // namespace bimetal::parallel::schedule
