#include "bimetal/plan/memory/memory_use.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace bimetal::plan {
namespace {

/// Walks through a step as a rank makes it, and keeps the moment with the largest sum.
class StepWalk {
 public:
  StepWalk(const ModelFacts& facts, const Keeping& keeping, const RankLoad& load, double program)
      : facts_(facts),
        keeping_(keeping),
        load_(load),
        whole_(facts.parameter_bytes()),
        resident_(facts.resident_bytes()) {
    most_.program = program;
    below_.push_back(0);
    copies_below_.push_back(0);
    for (const auto& unit : facts.units) {
      below_.push_back(below_.back() + facts.bytes(unit.elements()));
      copies_below_.push_back(copies_below_.back() + facts.copies_of(unit));
      halved_ += static_cast<double>(unit.halved);
    }
    make_flats();
  }

  MemoryUse run() {
    if (in_shards() && load_.one_host && load_.host_is_device) room_ = shared_room();
    begin();
    if (load_.graphs && !in_shards()) graphs_ = most_activations();
    for (std::size_t unit = 0; unit < facts_.units.size(); ++unit) forward(unit);
    for (std::size_t unit = facts_.units.size(); unit-- > 0;) backward(unit);
    update();
    evaluation();
    return most_;
  }

 private:
  bool in_shards() const { return keeping_.level > 0; }
  bool in_half() const { return whole_in_half(facts_, keeping_); }
  bool accumulates() const { return load_.at_once < load_.samples; }
  /// If micro-batches add up, this is the last one's backward, which finds the others' gradients
  /// there.
  bool updates_in_backward() const { return keeping_.level == 3 && keeping_.update_in_backward; }
  double from(std::size_t unit) const { return whole_ - below_[unit]; }
  double shard() const { return in_shards() ? load_.shard : 1; }
  /// With the copy of another's, where there are any.
  double copied() const { return in_shards() && keeping_.copies > 1 ? load_.copied : 0; }
  double with_copy() const { return shard() + copied(); }

  void consider(std::string_view moment, MemoryUse use) {
    use.program = most_.program;
    use.moment = moment;
    use.host = on_host();
    use.parameters += facts_.frozen_bytes();
    if (graphs_ > 0) {
      use.activations += graphs_;
      use.gradients = std::max(use.gradients, whole_);
    }
    if (use.model() > most_.model()) most_ = use;
  }

  // Flat tensors as FlatPlan lays them: in the order of units, of at least a bucket's size below
  // level 3, and one for each shared tensor. That of resident ones is counted by itself.
  void make_flats() {
    const double least = keeping_.level == 3 ? 0 : load_.bucket_bytes;
    double open = 0;
    std::size_t first = 0;
    for (std::size_t u = 0; u < facts_.units.size(); ++u) {
      const auto& unit = facts_.units[u];
      if (unit.shared > 0) {
        flats_.push_back({facts_.bytes(unit.shared), u, u, true});
      }
      const auto apart = keeping_.level == 3 ? unit.resident : 0;
      if (open == 0) first = u;
      open += facts_.bytes(unit.parameters - apart);
      if (open < least && u + 1 < facts_.units.size()) continue;
      if (open > 0) flats_.push_back({open, first, u, false});
      open = 0;
    }
  }

  /// The memory that gradient_shards.cpp sets aside for good.
  double shared_room() const {
    double most = 0, last = 0, before = 0;
    for (const auto& flat : flats_) {
      most = std::max(most, flat.bytes);
      if (flat.shared) continue;
      most = std::max(most, before + last + flat.bytes);
      before = std::exchange(last, flat.bytes);
    }
    return most;
  }

  /// Bytes of the flat tensors that are on their way or being filled while `unit` goes backward,
  /// and of those before them, of which this rank has its part of the sum. A shared tensor's
  /// gradient comes when all others of its first unit have gone.
  struct Sent {
    double in_memory = 0, summed = 0, arriving = 0;
  };
  Sent sent(std::size_t unit) const {
    Sent sent;
    std::vector<double> through;
    for (auto flat = flats_.rbegin(); flat != flats_.rend(); ++flat) {
      if (flat->first_unit > unit) {
        through.push_back(flat->bytes);
      } else if (flat->last_unit > unit || (flat->last_unit == unit && !flat->shared)) {
        sent.in_memory += flat->bytes;
      }
    }
    // The sum has a place of its own from the beginning.
    for (std::size_t i = 0; i < through.size(); ++i) {
      if (i + kFlatsSent >= through.size()) sent.arriving += through[i];
      sent.summed += through[i];
    }
    sent.in_memory += sent.arriving;
    return sent;
  }

  /// Bytes of the flat tensors whose sums arrive behind backward.
  double last_sent() const {
    double bytes = 0;
    for (std::size_t i = 0; i < std::min(kFlatsSent, flats_.size()); ++i) {
      bytes += flats_[i].bytes;
    }
    return bytes;
  }

  /// Wherever.
  double all_states() const {
    return states_bytes(facts_, keeping_, with_copy() * static_cast<double>(facts_.elements()));
  }
  bool states_on_host() const { return keeping_.states_on_host(load_.host_is_device); }
  double states() const { return states_on_host() ? 0 : all_states(); }

  /// The bytes of an accelerator's states and parameters in the host's memory.
  double on_host() const {
    const bool parameters = keeping_.parameters_on_host(load_.host_is_device);
    return (states_on_host() ? all_states() : 0) + (parameters ? with_copy() * whole_ : 0);
  }

  /// Whole between steps at levels 1 and 2; parameters in half are also kept apart, as ranks keep
  /// them.
  double between_steps() const { return gathered_bytes(facts_, keeping_); }
  double kept_parameters() const {
    if (keeping_.level < 3) {
      return between_steps() + (in_half() ? shard() * facts_.bytes(halved_) : 0);
    }
    const bool elsewhere = keeping_.parameters_elsewhere(load_.host_is_device);
    return resident_ + (elsewhere ? 0 : with_copy() * whole_);
  }

  /// Level 3: the bytes gathered while `unit` runs, including the next unit's and those that stay
  /// to the end of the pass.
  double gathered(std::size_t unit, bool back) const {
    if (keeping_.level < 3) return 0;
    const auto own = [&](std::size_t u) {
      const auto& unit_facts = facts_.units[u];
      const auto halved = in_half() ? unit_facts.halved : 0;
      const auto exact = unit_facts.parameters - unit_facts.resident - halved;
      return facts_.bytes(exact) + static_cast<double>(halved) * facts_.half_bytes;
    };
    const auto last = facts_.units.size() - 1;
    double bytes = 0;
    for (std::size_t u = 0; u <= (back ? last : unit); ++u) {
      bytes += facts_.bytes(facts_.units[u].shared);
    }
    if (back || unit == last) bytes += own(last);
    if (unit < last) bytes += own(unit);
    if (back && unit > 0) bytes += own(unit - 1);
    if (!back && unit + 1 <= last) bytes += own(unit + 1);
    return bytes;
  }

  double batches() const { return 2 * load_.samples * facts_.batch_bytes; }

  std::size_t group_of(std::size_t unit) const {
    const auto at_once = keeping_.recomputed_at_once;
    return at_once == 0 ? 0 : unit / at_once;
  }
  std::size_t first_of(std::size_t unit) const {
    return group_of(unit) * keeping_.recomputed_at_once;
  }
  bool in_last_group(std::size_t unit) const {
    return group_of(unit) == group_of(facts_.units.size() - 1);
  }

  /// Inputs of the groups of units that are computed again, up to that of `unit`.
  double group_inputs(std::size_t unit) const {
    if (keeping_.recomputed_at_once == 0) return 0;
    double bytes = 0;
    for (std::size_t first = keeping_.recomputed_at_once; first <= unit;
         first += keeping_.recomputed_at_once) {
      bytes += facts_.units[first - 1].output.at(load_.at_once);
    }
    return bytes;
  }
  /// The bytes that earlier units have saved and that are still there: those of its own group.
  double saved_before(std::size_t unit) const {
    double bytes = group_inputs(unit);
    for (std::size_t u = first_of(unit); u < unit; ++u) {
      bytes += own_bytes(facts_.units[u].saved, facts_.copies_of(facts_.units[u]));
    }
    return bytes;
  }

  /// A figure without the copies in it that autocast has made of parameters.
  double own_bytes(const Linear& figure, double copies) const {
    return figure.beyond(copies, load_.at_once);
  }
  /// Such copies, once forward has come through so many units; none where parameters are gathered
  /// in their type.
  double copies(std::size_t units) const { return in_half() ? 0 : copies_below_[units]; }

  void begin() {
    double largest = 0;
    for (const auto& flat : flats_) largest = std::max(largest, flat.bytes);
    MemoryUse use;
    use.parameters = whole_ + (keeping_.level == 3 ? with_copy() * whole_ : 0);
    if (keeping_.level == 3 && facts_.by_units) use.parameters = kept_parameters() + largest;
    // In memory that all see the parameters have a place of their own, set aside at once.
    const bool beside = room_ > 0 && keeping_.level < 3;
    use.buffers = beside ? between_steps() : in_shards() ? largest : 0;
    consider("the start, when the model is made", use);
  }

  double forward_activations(std::size_t unit) const {
    const bool dropped = keeping_.recomputed_at_once > 0 && !in_last_group(unit);
    const double before = dropped ? group_inputs(unit) : saved_before(unit);
    const auto& facts = facts_.units[unit];
    return before + own_bytes(facts.forward_peak, facts_.copies_of(facts)) + copies(unit + 1) +
           batches();
  }
  double backward_activations(std::size_t unit) const {
    // Copies for the units behind it, which are through, are still there.
    const double measured = copies_below_.back() - copies_below_[unit];
    return saved_before(unit) + own_bytes(facts_.units[unit].backward_peak, measured) +
           copies(facts_.units.size()) + batches();
  }
  /// What graphs keep of it, while a piece of another shape may be computed beside them.
  double most_activations() const {
    double most = 0;
    for (std::size_t unit = 0; unit < facts_.units.size(); ++unit) {
      most = std::max({most, forward_activations(unit), backward_activations(unit)});
    }
    return most;
  }
  /// Gradients of a group that is computed again come together.
  double group_gradients(std::size_t unit) const {
    if (keeping_.recomputed_at_once == 0 || in_last_group(unit)) return 0;
    const auto end = std::min(first_of(unit) + keeping_.recomputed_at_once, facts_.units.size());
    double bytes = 0;
    for (std::size_t u = unit; u < end; ++u) {
      bytes += facts_.bytes(facts_.units[u].parameters);
    }
    return bytes;
  }

  // Gradients that other micro-batches have left, when forward runs or backward has come to `unit`.
  double gradients_left(std::size_t unit) const {
    if (!accumulates()) return 0;
    if (keeping_.level >= 2) return shard() * whole_;
    return load_.ranks == 1 ? whole_ : below_[unit + 1];
  }

  void forward(std::size_t unit) {
    MemoryUse use;
    use.parameters = kept_parameters() + gathered(unit, false);
    use.gradients = gradients_left(facts_.units.size() - 1);
    use.optimizer = states();
    use.activations = forward_activations(unit);
    use.buffers = set_aside();
    consider("forward", use);
  }

  /// Between backward passes, too: all buckets, or the room for shards.
  double set_aside() const { return in_shards() ? room_ : load_.ranks > 1 ? whole_ : 0; }

  void backward(std::size_t unit) {
    MemoryUse use;
    use.parameters = kept_parameters() + gathered(unit, true);
    use.optimizer = states();
    use.activations = backward_activations(unit);
    use.gradients = gradients_left(unit) + group_gradients(unit);
    use.buffers = set_aside();
    if (in_shards()) {
      const auto [in_memory, summed, arriving] = sent(unit);
      if (keeping_.level == 1 || !accumulates()) {
        use.gradients += shard() * (updates_in_backward() ? arriving : summed);
      }
      // In memory that all see a sum is there by the time that its place is wanted.
      use.buffers = (room_ > 0 ? room_ : in_memory) + (keeping_.level == 3 ? resident_ : 0);
    } else if (load_.ranks == 1 && !accumulates()) {
      use.gradients += from(unit);
    }
    consider("backward", use);
  }

  void update() {
    MemoryUse use;
    use.parameters = kept_parameters();
    use.gradients = in_shards() ? with_copy() * whole_ : load_.ranks == 1 ? whole_ : 0;
    if (updates_in_backward()) use.gradients = shard() * last_sent();
    use.optimizer = states();
    use.activations = batches();
    use.buffers = set_aside();
    consider("the update", use);
  }

  /// In float32: levels 1 and 2 bring parameters that they have in half.
  void evaluation() {
    if (!load_.evaluates || !in_half() || keeping_.level == 3 || halved_ == 0) return;
    MemoryUse use;
    use.parameters = kept_parameters() + facts_.bytes(halved_);
    use.gradients = shard() * whole_;
    use.optimizer = states();
    use.activations = batches();
    for (const auto& unit : facts_.units) {
      const auto own = own_bytes(unit.forward_peak, facts_.copies_of(unit)) + batches();
      use.activations = std::max(use.activations, own);
    }
    use.buffers = set_aside();
    consider("evaluation", use);
  }

  struct Flat {
    double bytes;
    std::size_t first_unit, last_unit;
    bool shared;
  };

  const ModelFacts& facts_;
  const Keeping& keeping_;
  const RankLoad& load_;
  const double whole_, resident_;     ///< bytes: all, and those that stay whole at level 3
  std::vector<double> below_;         ///< bytes of the parameters of the units before each
  std::vector<double> copies_below_;  ///< likewise of what autocast copies of them
  double halved_ = 0;                 ///< elements that are whole in half
  double room_ = 0;                   ///< for gradients on their way, set aside
  double graphs_ = 0;                 ///< what they keep of activations
  std::vector<Flat> flats_;
  MemoryUse most_;
};

/// Steps that are measured before training are those of a rank alone; where there are shards they
/// leave the update out (train/measure/step_probe.h).
MemoryUse rehearsal_use(ModelFacts facts, const Keeping& keeping, const RankLoad& load,
                        double program) {
  if (keeping.level > 0) facts.state_bytes = 0;
  const Keeping alone{.recomputed_at_once = keeping.recomputed_at_once};
  const RankLoad whole{.samples = load.rehearsed,
                       .at_once = load.rehearsed_at_once,
                       .host_is_device = load.host_is_device,
                       .bucket_bytes = load.bucket_bytes};
  auto use = StepWalk(facts, alone, whole, program).run();
  use.moment = "measuring steps before training";
  return use;
}

}  // namespace

double gathered_bytes(const ModelFacts& facts, const Keeping& keeping,
                      std::span<const UnitFacts> units) {
  const double halved_bytes =
      whole_in_half(facts, keeping) ? facts.half_bytes : facts.element_bytes;
  double bytes = 0;
  for (const auto& unit : units) {
    bytes += facts.bytes(unit.elements() - unit.halved) +
             static_cast<double>(unit.halved) * halved_bytes;
  }
  return bytes;
}

double gathered_bytes(const ModelFacts& facts, const Keeping& keeping) {
  return gathered_bytes(facts, keeping, facts.units);
}

MemoryUse memory_use(const ModelFacts& facts, const Keeping& keeping, const RankLoad& load,
                     double program) {
  if (facts.units.empty()) {
    MemoryUse none;
    none.program = program;
    return none;
  }
  const auto use = StepWalk(facts, keeping, load, program).run();
  if (keeping.level > 1 || load.rehearsed == 0) return use;
  const auto before = rehearsal_use(facts, keeping, load, program);
  return before.model() > use.model() ? before : use;
}

}  // namespace bimetal::plan
