#include "bimetal/parallel/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::parallel::schedule {
namespace {

constexpr std::array<std::pair<Kind, std::string_view>, 4> kNames = {{
    {Kind::gpipe, "gpipe"},
    {Kind::one_f_one_b, "1f1b"},
    {Kind::interleaved, "interleaved"},
    {Kind::zero_bubble, "zero_bubble"},
}};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, why);
}

std::vector<Action> gpipe(int micro_batches) {
  std::vector<Action> actions;
  for (int i = 0; i < micro_batches; ++i) actions.push_back({What::forward, i});
  for (int i = 0; i < micro_batches; ++i) actions.push_back({What::backward, i});
  return actions;
}

/// The n-th forward and the n-th backward of a stage, and how many forwards it is ahead: the common
/// form of 1F1B, interleaved or not.
template <typename Forward, typename Backward>
std::vector<Action> one_by_one(int count, int ahead, const Forward& forward,
                               const Backward& backward) {
  std::vector<Action> actions;
  ahead = std::min(ahead, count);
  for (int n = 0; n < ahead; ++n) actions.push_back(forward(n));
  for (int n = 0; n < count; ++n) {
    if (n + ahead < count) actions.push_back(forward(n + ahead));
    actions.push_back(backward(n));
  }
  return actions;
}

int windows_of(const Shape& shape, int first, int last) {
  int sum = 0;
  for (int stage = first; stage < last; ++stage) sum += shape.window(stage);
  return sum;
}

std::vector<Action> one_f_one_b(int stage, const Shape& shape) {
  return one_by_one(
      shape.micro_batches, windows_of(shape, stage, shape.stages) - 1,
      [](int n) {
        return Action{What::forward, n};
      },
      [](int n) {
        return Action{What::backward, n};
      });
}

// Groups of as many micro-batches as there are stages go through all chunks before the next group
// begins.
std::vector<Action> interleaved(int stage, const Shape& shape) {
  const int stages = shape.stages, micro_batches = shape.micro_batches, chunks = shape.chunks;
  const auto nth = [&](What what, int n) {
    const int round = stages * chunks, within = n % round;
    const int chunk = within / stages;
    return Action{what, n / round * stages + within % stages,
                  what == What::forward ? chunk : chunks - 1 - chunk};
  };
  const int ahead = 2 * (stages - stage - 1) + (chunks - 1) * stages;
  return one_by_one(
      micro_batches * chunks, ahead, [&](int n) { return nth(What::forward, n); },
      [&](int n) { return nth(What::backward, n); });
}

// Stage s puts off the weights' part by s micro-batches, for which it holds activations that 1F1B
// has on the stages before: later stages let their inputs' gradients go first.
std::vector<Action> zero_bubble(int stage, const Shape& shape) {
  const int behind = windows_of(shape, 0, stage);
  std::vector<Action> actions;
  int done = 0;
  for (const auto& action : one_f_one_b(stage, shape)) {
    if (action.what == What::forward) {
      actions.push_back(action);
      continue;
    }
    actions.push_back({What::backward_input, action.micro_batch});
    if (action.micro_batch >= behind) actions.push_back({What::backward_weight, done++});
  }
  while (done < shape.micro_batches) actions.push_back({What::backward_weight, done++});
  return actions;
}

}  // namespace

std::string_view to_string(Kind kind) noexcept {
  return kNames[static_cast<std::size_t>(kind)].second;
}

Kind kind_named(std::string_view name) {
  const auto found = std::ranges::find(kNames, name, &std::pair<Kind, std::string_view>::second);
  if (found != kNames.end()) return found->first;
  refuse(
      fmt::format("\"{}\" is no schedule of a pipeline: there are \"gpipe\", \"1f1b\", "
                  "\"interleaved\" and \"zero_bubble\"",
                  name));
}

std::string to_string(const Action& action) {
  constexpr std::string_view kLetters = "FBIW";
  const char letter = kLetters[static_cast<std::size_t>(action.what)];
  return action.chunk == 0 ? fmt::format("{}{}", letter, action.micro_batch)
                           : fmt::format("{}{}.{}", letter, action.micro_batch, action.chunk);
}

void require_possible(Kind kind, const Shape& shape) {
  const int stages = shape.stages, micro_batches = shape.micro_batches, chunks = shape.chunks;
  if (stages < 1 || micro_batches < 1 || chunks < 1) {
    refuse(
        fmt::format("a pipeline of {} stages, {} micro-batches and {} pieces per stage: each must "
                    "be at least 1",
                    stages, micro_batches, chunks));
  }
  if (micro_batches > kMostMicroBatches) {
    refuse(
        fmt::format("a step of {} micro-batches: {} at most can be told apart; take micro-batches "
                    "of more samples each, or smaller steps",
                    micro_batches, kMostMicroBatches));
  }
  if (kind != Kind::interleaved && chunks != 1) {
    refuse(fmt::format(
        "schedule \"{}\" has one piece of the model per stage, not {}: take \"interleaved\"",
        to_string(kind), chunks));
  }
  if (kind == Kind::interleaved && !shape.windows.empty()) {
    refuse(
        "schedule \"interleaved\" goes in rounds of as many micro-batches as there are stages, "
        "which several replicas of a stage in one pipeline do not keep: take \"1f1b\"");
  }
  if (kind == Kind::interleaved && micro_batches % stages != 0) {
    const int fewer = micro_batches / stages * stages;
    refuse(fmt::format(
        "schedule \"interleaved\" goes in rounds of as many micro-batches as there are stages: {} "
        "over {} stages do not; {}{} would",
        micro_batches, stages, fewer > 0 ? fmt::format("{} or ", fewer) : "", fewer + stages));
  }
}

std::vector<UnitRange> pieces_of(std::span<const std::size_t> begins, std::size_t units, int stages,
                                 int stage) {
  std::vector<UnitRange> pieces;
  for (auto piece = static_cast<std::size_t>(stage); piece < begins.size();
       piece += static_cast<std::size_t>(stages)) {
    pieces.push_back({begins[piece], piece + 1 < begins.size() ? begins[piece + 1] : units});
  }
  return pieces;
}

int micro_batches_near(Kind kind, int stages, int wanted) {
  if (kind != Kind::interleaved) return wanted;
  return (wanted + stages - 1) / stages * stages;
}

int usual_micro_batches(Kind kind, int stages, std::int64_t samples, std::int64_t pieces) {
  constexpr std::int64_t kPerStage = 4;
  const auto wanted = std::max(pieces, std::min(samples, kPerStage * stages));
  return micro_batches_near(kind, stages, static_cast<int>(wanted));
}

int micro_batches_filled(Kind kind, int stages, int wanted, std::int64_t samples) {
  const int grain = kind == Kind::interleaved ? stages : 1;
  const auto filled = std::max<std::int64_t>(samples / grain, 1) * grain;
  return static_cast<int>(std::min<std::int64_t>(wanted, filled));
}

std::vector<std::int64_t> micro_batch_sizes(std::int64_t samples, int micro_batches) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    sizes.push_back(samples * (i + 1) / micro_batches - samples * i / micro_batches);
  }
  return sizes;
}

std::vector<Action> schedule(Kind kind, int stage, const Shape& shape) {
  require_possible(kind, shape);
  if (stage < 0 || stage >= shape.stages) {
    refuse(fmt::format("a pipeline of {} stages has no stage {}", shape.stages, stage));
  }
  switch (kind) {
    case Kind::gpipe: return gpipe(shape.micro_batches);
    case Kind::one_f_one_b: return one_f_one_b(stage, shape);
    case Kind::interleaved: return interleaved(stage, shape);
    case Kind::zero_bubble: return zero_bubble(stage, shape);
  }
  return {};
}

std::vector<std::vector<Action>> schedules(Kind kind, const Shape& shape) {
  std::vector<std::vector<Action>> all;
  for (int stage = 0; stage < shape.stages; ++stage) all.push_back(schedule(kind, stage, shape));
  return all;
}

}  // namespace bimetal::parallel::schedule
