#include <algorithm>
#include <numeric>
#include <utility>

#include "bimetal/parallel/schedule/simulate.h"
#include "bimetal/plan/memory/memory_use.h"

namespace bimetal::plan {

namespace schedule = parallel::schedule;

namespace {

/// Units that are computed again together, or the last of a piece, whose activations stay
/// (task/segments.h): backward begins with these.
struct Group {
  std::size_t units = 0;
  double input = 0, saved = 0;  ///< of a micro-batch
  double beyond = 0;            ///< the most that one needs for a time, beside all saved
                                ///< tensors
  double again = 0;      ///< the most that all need where they are computed again, but gradients
  double gradients = 0;  ///< of its parameters, which then come together
  double copies = 0;     ///< of its parameters
};

/// Goes through a device's units in their order and adds up their memory.
class StageWalk {
 public:
  StageWalk(const ModelFacts& facts, const StageLoad& load) : facts_(facts), load_(load) {
    for (const auto& moment : load.in_flight.moments) {
      together_ = std::max(together_, std::reduce(moment.begin(), moment.end()));
    }
  }

  /// Another piece begins with that unit.
  void begin(std::size_t unit) {
    if (open_.units > 0) end_piece();
    next_ = unit;
    behind_ = 0;
    for (auto u = unit; u < facts_.units.size(); ++u) behind_ += facts_.copies_of(facts_.units[u]);
    tied_ = -shared_;
    tied_frozen_ = -shared_frozen_;
    for (std::size_t u = 0; u < unit; ++u) {
      tied_ += static_cast<double>(facts_.units[u].shared);
      tied_frozen_ += facts_.units[u].frozen_shared;
    }
  }

  void add() {
    const auto& unit = facts_.units[next_];
    add_kept(unit);
    if (open_.units > 0 && open_.units == load_.keeping.recomputed_at_once) drop();
    if (open_.units == 0 && next_ > 0) {
      open_.input = facts_.units[next_ - 1].output.at(load_.at_once);
    }
    add_activations(unit);
    ++open_.units;
    ++next_;
  }

  /// The memory of all pieces walked through or, for one piece, of as many like it as the device
  /// has.
  MemoryUse use() const {
    const auto& keeping = load_.keeping;
    const double pieces = closed_.empty() ? static_cast<double>(chunks()) : 1;
    const bool last = next_ == facts_.units.size();
    const double shared = pieces * shared_ + (last ? tied_ : 0), own = pieces * own_;
    const double frozen = pieces * frozen_ + (last ? tied_frozen_ : 0);
    MemoryUse use;
    use.parameters = pieces * whole_ + facts_.bytes(shared) + frozen;
    // The gradient of one that another stage has, too, is whole to the end of a step.
    use.gradients = facts_.bytes(own * (keeping.level > 1 ? load_.shard : 1) + shared);
    const double kept = (own + shared) * (keeping.level > 0 ? load_.shard : 1);
    use.optimizer = states_bytes(facts_, keeping, kept);
    if (keeping.states_on_host(load_.host_is_device)) use.host = std::exchange(use.optimizer, 0);
    if (keeping.parameters_on_host(load_.host_is_device)) {
      use.host += facts_.bytes(own + shared) * load_.shard;
    }
    use.buffers = on_their_way(facts_.bytes(own), facts_.bytes(own + shared));
    use.activations = held() + pieces * (copies_ + copied(open_)) + std::max(passing_, passing());
    return use;
  }

 private:
  /// Pieces that the device has, as far as that is known.
  std::size_t chunks() const {
    const auto& moments = load_.in_flight.moments;
    return moments.empty() ? 1 : moments.front().size();
  }

  /// The bytes that one micro-batch leaves in the open piece.
  double left() const { return kept_ + open_.input + open_.saved; }

  /// Most that all in flight have left in all pieces.
  double held() const {
    const auto& [each, moments] = load_.in_flight;
    const double last = left();
    if (moments.empty()) return each * std::reduce(closed_.begin(), closed_.end(), last);
    if (closed_.empty()) return together_ * last;
    double most = 0;
    for (const auto& moment : moments) {
      double sum = 0;
      for (std::size_t chunk = 0; chunk < moment.size(); ++chunk) {
        sum += moment[chunk] * (chunk < closed_.size() ? closed_[chunk] : last);
      }
      most = std::max(most, sum);
    }
    return most;
  }

  /// Most micro-batches that are in flight in the open piece.
  double here() const {
    const auto& [each, moments] = load_.in_flight;
    if (moments.empty()) return each;
    int most = 0;
    for (const auto& moment : moments) {
      most = std::max(most, closed_.empty() ? std::ranges::max(moment) : moment[closed_.size()]);
    }
    return most;
  }

  /// In a step all are whole. At level 3 a shard lies apart but where it is a part of that
  /// (shard/flat_parameters.h), or elsewhere.
  void add_kept(const UnitFacts& unit) {
    const auto own = static_cast<double>(unit.parameters);
    own_ += own;
    shared_ += static_cast<double>(unit.shared);
    frozen_ += unit.frozen;
    shared_frozen_ += unit.frozen_shared;
    whole_ += facts_.bytes(own);
    open_flat_ += facts_.bytes(own);
    largest_flat_ = std::max(largest_flat_, open_flat_);
    if (load_.keeping.level > 2 || open_flat_ >= load_.bucket_bytes) open_flat_ = 0;
    if (load_.keeping.level < 3) return;
    const auto halved = facts_.alike ? unit.halved : 0;
    const bool elsewhere = load_.keeping.parameters_elsewhere(load_.host_is_device);
    const auto apart = elsewhere ? 0 : static_cast<double>(halved + unit.resident);
    whole_ += facts_.bytes(apart * load_.shard);
    whole_ -= static_cast<double>(halved) * (facts_.element_bytes - facts_.half_bytes);
  }

  void add_activations(const UnitFacts& unit) {
    const double copies = facts_.copies_of(unit), at_once = load_.at_once;
    const double saved = unit.saved.beyond(copies, at_once);
    // In backward those for the units behind it are still there.
    const double most = std::max(unit.backward_peak.beyond(behind_, at_once),
                                 unit.forward_peak.beyond(copies, at_once));
    behind_ -= copies;
    open_.beyond = std::max(open_.beyond, most - saved);
    // Gradients of those before it have not come yet.
    open_.again = std::max(open_.again, open_.saved - open_.gradients + most);
    open_.saved += saved;
    open_.gradients += facts_.bytes(unit.parameters);
    open_.copies += copies;
  }

  /// The gradients of copies are of the same size. In the first micro-batch that uses a copy they
  /// are cast to the parameters' type one by one. In later ones autograd leaves all of them to the
  /// end, because it goes by the age of its notes. Units that are computed again make their own.
  /// Where parameters come in half there are no copies.
  double copied(const Group& group) const {
    return load_.keeping.level > 2 && facts_.alike ? 0 : 2 * group.copies;
  }

  /// The memory that a piece needs for a time. When a group is computed again, the last group's
  /// saved tensors of that micro-batch are gone, except for the output. The output's gradient is
  /// there, and so are the last group's copies: each further micro-batch in flight has its own,
  /// since computing again drops those that autocast remembers (task/segments.cpp).
  double passing() const {
    const bool hands_on = next_ > 0 && next_ < facts_.units.size();
    const double output = hands_on ? facts_.units[next_ - 1].output.at(load_.at_once) : 0;
    if (again_ == 0) return open_.beyond;
    const double others = std::max(0.0, here() - 1) * copied(open_) / 2;
    return std::max(open_.beyond, again_ - open_.saved + 2 * output + others - copied(open_));
  }

  /// The activations of the open group, which is not the last.
  void drop() {
    kept_ += open_.input;
    again_ = std::max(again_, open_.again + open_.gradients);
    open_ = {};
  }

  void end_piece() {
    passing_ = std::max(passing_, passing());
    closed_.push_back(left());
    copies_ += copied(open_);
    kept_ = again_ = 0;
    open_ = {};
  }

  /// `own`: bytes that this stage alone has; `all`: including those that others have, too.
  double on_their_way(double own, double all) const {
    if (load_.keeping.level == 0) return load_.replicas > 1 ? all : 0;
    if (load_.keeping.level > 1) return (1 + kFlatsSent) * largest_flat_;
    // Gradients wait whole, until they are in a flat tensor; gradients that were sent have sums.
    const double sums = load_.replicas > 1 ? kFlatsSent * load_.shard : 0;
    return std::min(own, (1 + sums) * largest_flat_);
  }

  const ModelFacts& facts_;
  const StageLoad& load_;
  int together_ = 0;  ///< most micro-batches in flight in all chunks
  std::size_t next_ = 0;
  double own_ = 0, shared_ = 0;          ///< elements
  double tied_ = 0;                      ///< elements that other devices' units before share
  double whole_ = 0;                     ///< bytes of its own, as a step has them
  double frozen_ = 0, tied_frozen_ = 0;  ///< bytes
  double shared_frozen_ = 0;             ///< of these, what further units use, too
  double open_flat_ = 0, largest_flat_ = 0;
  double behind_ = 0;  ///< bytes of copies for the next unit and those behind it, as measured
  std::vector<double> closed_;  ///< left by a micro-batch in each piece before the open one
  double kept_ = 0;             ///< and in that, but for the open group
  double copies_ = 0;           ///< and their gradients, likewise
  double again_ = 0;    ///< the most that a group of this piece needs that is computed again
  double passing_ = 0;  ///< of pieces before
  Group open_;
};

}  // namespace

InFlight in_flight(schedule::Kind kind, int stage, const schedule::Shape& shape) {
  switch (kind) {
    case schedule::Kind::gpipe: return shape.micro_batches;
    case schedule::Kind::one_f_one_b: return std::min(shape.micro_batches, shape.stages - stage);
    case schedule::Kind::zero_bubble: return std::min(shape.micro_batches, shape.stages);
    case schedule::Kind::interleaved: break;
  }
  // A stage is less than two rounds ahead, and its contents recur from round to round.
  auto some = shape;
  some.micro_batches = std::min(
      schedule::micro_batches_near(kind, shape.stages, shape.micro_batches), 4 * shape.stages);
  InFlight found;
  found.moments = schedule::fullest_moments(schedule::schedule(kind, stage, some), shape.chunks);
  return found;
}

double tied_elements(const ModelFacts& facts, std::span<const UnitRange> pieces) {
  double tied = 0;
  if (pieces.back().end < facts.units.size()) return tied;
  for (std::size_t u = 0; u < pieces.back().begin; ++u) {
    const bool own = std::ranges::any_of(
        pieces, [u](const UnitRange& piece) { return piece.begin <= u && u < piece.end; });
    if (!own) tied += static_cast<double>(facts.units[u].shared);
  }
  return tied;
}

MemoryUse stage_use(const ModelFacts& facts, std::span<const UnitRange> pieces,
                    const StageLoad& load) {
  StageWalk walk(facts, load);
  for (const auto& [begin, end] : pieces) {
    walk.begin(begin);
    for (auto unit = begin; unit < end; ++unit) walk.add();
  }
  return walk.use();
}

std::vector<bool> fitting_ends(std::span<const StageDevice> devices, std::size_t begin) {
  std::vector<bool> fit(devices.front().facts->units.size() - begin, true);
  for (const auto& [facts, load, room, host_room] : devices) {
    StageWalk walk(*facts, load);
    walk.begin(begin);
    for (std::size_t units = 0; units < fit.size(); ++units) {
      walk.add();
      const auto use = walk.use();
      fit[units] = fit[units] && use.model() <= room && use.host <= host_room;
    }
  }
  return fit;
}

}  // namespace bimetal::plan
