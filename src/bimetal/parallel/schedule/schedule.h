#pragma once
// The actions of a pipeline stage in a step, as a list. Running, testing and planning use the same
// list. Pure functions of a few numbers, so that every rank knows the lists of all.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::parallel::schedule {

enum class Kind {
  gpipe,        ///< all forward, then all backward: Huang et al., NeurIPS 2019, §2.3
  one_f_one_b,  ///< "1f1b": Narayanan et al., "PipeDream-Flush", ICML 2021, §2.2 there
  interleaved,  ///< 1F1B over several pieces per stage: Narayanan et al., SC 2021, §2.2
  zero_bubble,  ///< ZB-H1, backward in two parts: Qi et al., "Zero Bubble", ICLR 2024, §2.3
};

/// "gpipe", "1f1b", "interleaved", "zero_bubble": as job files have them.
std::string_view to_string(Kind kind) noexcept;
/// Error(InvalidArgument) that lists the kinds.
Kind kind_named(std::string_view name);

enum class What : std::uint8_t {
  forward,
  backward,         ///< of inputs and weights
  backward_input,   ///< gradients of inputs alone: the stage before waits for them
  backward_weight,  ///< the rest; nobody else waits for it
};

struct Action {
  What what = What::forward;
  int micro_batch = 0;
  int chunk = 0;  ///< which of the stage's pieces
  bool operator==(const Action&) const = default;
};

/// "F3", "B3", "I3", "W3"; with several chunks "F3.1".
std::string to_string(const Action& action);

/// Where a model is cut into stages · chunks pieces, stage s has those of s + chunk · stages: a
/// micro-batch comes by every stage once for each chunk.
constexpr int piece_of(int stage, int chunk, int stages) {
  return stage + chunk * stages;
}

/// Units [begin, end) of a model.
struct UnitRange {
  std::size_t begin = 0, end = 0;
  bool operator==(const UnitRange&) const = default;
};

/// The units of stage `stage`, a range for each chunk, in a model of `units` units whose pieces
/// begin with these.
std::vector<UnitRange> pieces_of(std::span<const std::size_t> begins, std::size_t units, int stages,
                                 int stage);

/// Pieces per stage: 1, but for interleaved.
struct Shape {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;
  /// How many micro-batches are in each stage at a time, on its replicas together; empty: 1.
  std::vector<int> windows = {};

  int window(int stage) const {
    return windows.empty() ? 1 : windows[static_cast<std::size_t>(stage)];
  }
};

/// The most in a step: messages between stages have so many numbers for them.
inline constexpr int kMostMicroBatches = 1 << 16;

/// Error(InvalidArgument), which says what could be run, unless stages, micro_batches and chunks
/// are at least 1, micro_batches is at most kMostMicroBatches, chunks is 1 but for interleaved, and
/// with interleaved micro_batches is a multiple of stages and there are no windows.
void require_possible(Kind kind, const Shape& shape);

/// Micro-batches that `kind` can run, nearest to `wanted` and not below it.
int micro_batches_near(Kind kind, int stages, int wanted);

/// The micro-batches of a step if nobody says how many: `pieces`, the number that memory cuts a
/// share of so many samples into, or enough to keep the bubble of equal stages to a fifth of the
/// step.
int usual_micro_batches(Kind kind, int stages, std::int64_t samples, std::int64_t pieces);

/// The number of micro-batches that `samples` fill: at most `wanted`, and one that `kind` can run,
/// except for less than a round of interleaved. At least 1.
int micro_batches_filled(Kind kind, int stages, int wanted, std::int64_t samples);

/// How many samples each of so many micro-batches has: as equal as can be, 0 where there are too
/// few.
std::vector<std::int64_t> micro_batch_sizes(std::int64_t samples, int micro_batches);

/// The actions of stage `stage` in their order. Each action waits for those before it in the model:
/// forward for the forward of the piece before, backward for the backward of the piece behind. Each
/// micro-batch has one forward per chunk, and either a backward or a backward_input and then a
/// backward_weight. Errors: those of require_possible.
///
/// The most activations that a stage (of p, counted from 0) keeps, of m micro-batches: gpipe m,
/// 1f1b min(m, p − stage), zero_bubble min(m, p). With windows p is their sum, and `stage` that of
/// the stages before. Interleaved, over v chunks, m · v or 2 (p − stage) + (v − 1) p − 1 of a
/// chunk: how many of which, simulate.h tells.
std::vector<Action> schedule(Kind kind, int stage, const Shape& shape);

/// Those of all stages.
std::vector<std::vector<Action>> schedules(Kind kind, const Shape& shape);

}  // namespace bimetal::parallel::schedule
