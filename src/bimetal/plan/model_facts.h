#pragma once
// The facts on a model that a plan needs. For each unit: its parameters, the bytes that its forward
// and backward need, and their time on the measured device.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace bimetal::plan {

/// A quantity that grows with the samples computed at once: bytes or seconds.
struct Linear {
  double fixed = 0, per_sample = 0;

  double at(double samples) const { return fixed + per_sample * samples; }
  Linear operator*(double factor) const { return {fixed * factor, per_sample * factor}; }
  /// Without `copies` that are in it, which are counted by themselves.
  double beyond(double copies, double samples) const { return std::max(0.0, at(samples) - copies); }

  /// Through two measurements; what does not grow is all fixed.
  static Linear through(double samples, double value, double more_samples, double more_value) {
    if (more_samples <= samples || more_value <= value) return {std::max(value, more_value), 0};
    const double slope = (more_value - value) / (more_samples - samples);
    const double fixed = value - slope * samples;
    return fixed >= 0 ? Linear{fixed, slope} : Linear{0, more_value / more_samples};
  }
};

/// Tensors of a unit that several ranks may have in parts, and that are cut alike
/// (task::TensorSplit).
struct SplitFacts {
  std::int64_t pieces = 0;    ///< that stay whole and are dealt out: heads, columns, tokens
  std::int64_t elements = 0;  ///< of all that the unit uses, other units' included
  std::int64_t own = 0;       ///< of these, those in UnitFacts::parameters
  std::int64_t shared = 0;    ///< and those in UnitFacts::shared
};

/// The figures of a unit that tensor ranks (task/tensor_ranks.h) compute together.
struct PartFacts {
  std::vector<SplitFacts> splits = {};  ///< empty: each rank has all of the unit
  /// The fraction of each of the unit's figures, from 0 to 1, that each rank has however small its
  /// own part is.
  double output = 1, saved = 1, forward_peak = 1, backward_peak = 1, forward_s = 1, backward_s = 1;
  /// All-reduces over the ranks; a reduce_scatter or an all_gather is half of one.
  double forward_sums = 0, backward_sums = 0;
  Linear forward_summed_bytes = {}, backward_summed_bytes = {};  ///< of all of them together
};

/// A unit of the model (task/unit.h). The last one's figures include the loss.
struct UnitFacts {
  std::string name = {};
  std::int64_t parameters = 0;  ///< elements that it alone uses
  std::int64_t shared = 0;      ///< elements that further units use, too; named by the first alone
  std::int64_t resident = 0;    ///< of `parameters`: zero.keep_below leaves them whole at level 3
  /// Elements among the other `parameters` that are gathered from level 1 on in
  /// ModelFacts::half_bytes. Where they are whole in their own type, autocast copies them. The
  /// copies are in the figures below.
  std::int64_t halved = 0;
  double frozen = 0;         ///< bytes that are not trained, and buffers, of no unit before
  double frozen_shared = 0;  ///< of these, what further units use, too
  Linear output = {};        ///< bytes that go to the next unit
  Linear saved = {};         ///< bytes that its forward leaves for its backward, output included
  Linear forward_peak = {};  ///< most bytes of its own while its forward runs
  /// Most bytes of its own while its backward runs: its saved tensors, gradients of activations,
  /// and one gradient of a parameter at a time; and autocast's copies for the units behind it.
  Linear backward_peak = {};
  Linear forward_s = {}, backward_s = {};
  double operations = 0;  ///< of its forward for a sample; 0: not known
  PartFacts in_parts = {};

  std::int64_t elements() const { return parameters + shared; }
};

/// The operations of a step in terms of a forward's: a backward takes twice as many.
inline constexpr double kForwardsOfStep = 3;
/// And of one that computes its activations again, a forward more, in terms of one that does not.
inline constexpr double kStepRecomputed = (kForwardsOfStep + 1) / kForwardsOfStep;

struct ModelFacts {
  std::vector<UnitFacts> units = {};
  int element_bytes = 4;   ///< of a parameter and its gradient
  int half_bytes = 2;      ///< of an element that autocast has copied
  double state_bytes = 0;  ///< of the optimizer for each parameter: 8 of Adam in float32
  double update_s = 0;     ///< of the optimizer's update, for each parameter
  /// The cost of the two parts of a split backward (zero-bubble), in terms of an ordinary one.
  double split_inputs = 0.5, split_weights = 0.5;
  double batch_bytes = 0;          ///< of a sample's tensors, as the data set gives them
  std::int64_t sample_weight = 1;  ///< a sample's weight: 1, or its tokens
  bool by_units = false;           ///< made unit by unit at level 3, and so never whole
  std::int64_t shared_whole = 0;   ///< of parts of a model: elements that its units share, whole
  /// All ranks compute in one type: otherwise `halved` parameters come in their own type, and are
  /// copied.
  bool alike = true;

  /// The bytes of so many elements.
  template <typename Number>
  double bytes(Number elements) const {
    return static_cast<double>(elements) * element_bytes;
  }
  /// The bytes that autocast copies of a unit's parameters, once for all micro-batches of a step.
  /// It keeps them until the step's backward is through.
  double copies_of(const UnitFacts& unit) const {
    return static_cast<double>(unit.halved) * half_bytes;
  }
  std::int64_t elements() const {
    std::int64_t sum = 0;
    for (const auto& unit : units) sum += unit.elements();
    return sum;
  }
  double resident_bytes() const {
    double sum = 0;
    for (const auto& unit : units) sum += bytes(unit.resident);
    return sum;
  }
  /// That several units use.
  std::int64_t shared() const {
    std::int64_t sum = 0;
    for (const auto& unit : units) sum += unit.shared;
    return sum;
  }
  double frozen_bytes() const {
    double sum = 0;
    for (const auto& unit : units) sum += unit.frozen;
    return sum;
  }
  /// Seconds of forward and backward, with a second forward where that computes activations again.
  Linear pass_seconds(bool recomputed = false) const {
    Linear sum;
    const double forwards = recomputed ? 2 : 1;
    for (const auto& unit : units) {
      sum.fixed += forwards * unit.forward_s.fixed + unit.backward_s.fixed;
      sum.per_sample += forwards * unit.forward_s.per_sample + unit.backward_s.per_sample;
    }
    return sum;
  }
  double parameter_bytes() const { return bytes(elements()); }
};

// The facts of one tensor rank's part of a model, from those of the whole.

/// How many ranks the model's units have whole pieces for; 1 where no unit may be cut.
int most_tensor_ranks(const ModelFacts& facts);
/// For facts of one model on several kinds of devices.
int most_tensor_ranks(std::span<const ModelFacts> kinds);

/// The facts of rank `part` among ranks with these weights, for its own part. Pieces are dealt out
/// as in a run (balance::whole_parts). A unit's time is that of its matrices, in proportion, beside
/// the work that every rank does. Sums are not in it. Errors: InvalidArgument for more weights than
/// most_tensor_ranks().
ModelFacts facts_in_parts(const ModelFacts& whole, std::span<const double> weights,
                          std::size_t part);

}  // namespace bimetal::plan
