#pragma once
// The memory that a rank needs to train a model, by kind: docs/plan_model.md derives it. Pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "bimetal/parallel/schedule/schedule.h"
#include "bimetal/plan/model_facts.h"

namespace bimetal::plan {

/// Assumed of a disk that states are kept on.
inline constexpr double kDiskBytesPerS = 1e9;
/// The rate assumed for a host that steps an accelerator's state, and for the way to it.
inline constexpr double kHostBytesPerS = 1e10;
/// The memory in use for states on a disk (optim/offload).
inline constexpr double kDiskWindow = 3.0 * (8 << 20);
/// Flat tensors of gradients on their way, beside those being filled (gradient_shards.h).
inline constexpr std::size_t kFlatsSent = 3;

enum class Place { Device, Host, Disk };

/// How a job keeps what training needs: [zero] and train.recompute of its file.
struct Keeping {
  int level = 0;                       ///< of ZeRO
  Place optimizer = Place::Device;     ///< of its state
  Place parameters = Place::Device;    ///< of a rank's shard of them; level 3
  int copies = 1;                      ///< of each shard: zero.copies
  bool update_in_backward = false;     ///< zero.update; level 3
  std::size_t recomputed_at_once = 0;  ///< units that are computed again together; 0: none are
  /// Beside parameters that are not on the device its state is not, either.
  Place place_of_states() const {
    const bool beside = level == 3 && parameters != Place::Device;
    return beside && optimizer == Place::Device ? Place::Host : optimizer;
  }
  /// On a device that may be its own host.
  bool states_on_host(bool host_is_device) const {
    return !host_is_device && place_of_states() != Place::Device;
  }
  bool parameters_on_host(bool host_is_device) const {
    return !host_is_device && level == 3 && parameters == Place::Host;
  }
  bool parameters_elsewhere(bool host_is_device) const {
    return parameters == Place::Disk || (parameters == Place::Host && !host_is_device);
  }
  friend bool operator==(const Keeping&, const Keeping&) = default;
};

/// A rank's load in a step.
struct RankLoad {
  int ranks = 1;
  double shard = 1;            ///< its fraction of the shards, 0…1
  double copied = 0;           ///< the same of another's shard, of which it keeps a copy
  double samples = 1;          ///< its share of the global batch
  double at_once = 1;          ///< samples of its largest micro-batch
  bool host_is_device = true;  ///< a CPU: data kept on the host is in the same memory
  bool keeps_freed = false;    ///< memory of freed tensors, where there is room (spare_for)
  bool one_host = false;       ///< all ranks see each other's memory, and sum shards there
  double bucket_bytes = 25 << 20;
  /// The samples of the largest step that it makes before training, to measure its speed, with a
  /// model that nobody shares: levels 0 and 1. 0: none.
  double rehearsed = 0, rehearsed_at_once = 0;
  bool graphs = false;    ///< train.graphs, on a device that has them
  bool evaluates = true;  ///< at some time: levels 1 and 2 then have parameters whole in full,
                          ///< not in half
};

/// Bytes by kind at the moment of a run at which they are most together.
struct MemoryUse {
  double program = 0;     ///< of the process before there is a model: libraries, data
  double parameters = 0;  ///< those gathered for units included
  double gradients = 0;
  double optimizer = 0;
  double activations =
      0;               ///< what forward leaves for backward, and both need on their way; batches
  double buffers = 0;  ///< of data being sent
  /// Memory of freed tensors that need not be given back, as far as there is room, by plan_memory.
  /// The rest leaves it out, since almost nothing is free at a step's peak.
  double kept = 0;
  /// Bytes in the host's memory, if the device has its own, that are kept there throughout. The
  /// rest leaves them out.
  double host = 0;
  std::string_view moment = "";

  double model() const { return parameters + gradients + optimizer + activations + buffers; }
  double peak() const { return program + model(); }
};

/// The bytes of freed tensors that a CPU's heap may keep beside the `most` bytes that were in use.
constexpr double spare_for(double most) {
  return most / 16 + (16 << 20);
}

/// The part of them that it keeps if so much is `free` beside them. It is at most half, because
/// memory that a plan does not see wants room, too.
constexpr double kept_beside(double most, double free) {
  return std::clamp(free / 2, 0.0, spare_for(most));
}

/// Whether UnitFacts::halved parameters are whole in half, without copies (shard/sharded_model.h).
inline bool whole_in_half(const ModelFacts& facts, const Keeping& keeping) {
  const bool shards = keeping.level == 3 || (keeping.level > 0 && keeping.copies == 1);
  return shards && facts.alike;
}

/// Bytes of all parameters in the types that they are gathered in.
double gathered_bytes(const ModelFacts& facts, const Keeping& keeping);
/// The gathered bytes of some of its units.
double gathered_bytes(const ModelFacts& facts, const Keeping& keeping,
                      std::span<const UnitFacts> units);

/// The seconds of a step to read and write a shard of so many elements if its states or parameters
/// are on a disk: parameters once for each gather and, updated, once more.
inline double disk_seconds(const ModelFacts& facts, const Keeping& keeping, double elements,
                           double gathers) {
  double each = 0;  // bytes
  if (keeping.optimizer == Place::Disk) each += 2 * facts.state_bytes;
  if (keeping.parameters == Place::Disk) each += (gathers + 1) * facts.element_bytes;
  return elements * each / kDiskBytesPerS;
}

/// The optimizer's state for so many elements: for a state on a disk, its window.
inline double states_bytes(const ModelFacts& facts, const Keeping& keeping, double elements) {
  const double bytes = facts.state_bytes * elements;
  return keeping.optimizer == Place::Disk ? std::min(bytes, kDiskWindow) : bytes;
}

/// `program`: bytes.
MemoryUse memory_use(const ModelFacts& facts, const Keeping& keeping, const RankLoad& load,
                     double program);

// The memory that a device of a pipeline's stage needs.

/// Micro-batches whose activations a device has at a time.
struct InFlight {
  double each = 1;  ///< of each of its pieces
  /// Or, interleaved: how many of each, wherever that may be most (schedule/in_flight.h).
  std::vector<std::vector<int>> moments = {};

  InFlight(double of_each = 1) : each(of_each) {}
  friend bool operator==(const InFlight&, const InFlight&) = default;
};

struct StageLoad {
  double replicas = 1;
  double shard = 1 / replicas;  ///< its fraction of their shards, 0…1
  double at_once = 1;           ///< samples of a micro-batch that this device computes
  InFlight in_flight = {};
  Keeping keeping = {};  ///< level over the replicas
  /// Gradients travel in flat tensors of at least so much, level 3's unit by unit.
  double bucket_bytes = 0;
  bool host_is_device = true;  ///< as RankLoad has it
  friend bool operator==(const StageLoad&, const StageLoad&) = default;
};

using parallel::schedule::UnitRange;

/// The most micro-batches whose activations stage `stage` has (schedule.h), in a shape without
/// windows. Micro-batches that the schedule cannot run count as the next that it can.
InFlight in_flight(parallel::schedule::Kind kind, int stage,
                   const parallel::schedule::Shape& shape);

/// The memory, by kind, of the `pieces` of the model that one device has, at their peak:
/// parameters, gradients (those of earlier micro-batches wait), states, buckets of replicas or
/// gradients on their way, and activations. These are the outputs of forward of all micro-batches
/// in flight, the needs for a time of a unit, or of a group computed again, autocast's copies of
/// parameters, and the copies' gradients. The last piece of the model has tensors that units before
/// it use, too.
MemoryUse stage_use(const ModelFacts& facts, std::span<const UnitRange> pieces,
                    const StageLoad& load);
/// Elements that a device with these pieces has of other devices' units: the tensors that earlier
/// pieces share with the last piece of the model.
double tied_elements(const ModelFacts& facts, std::span<const UnitRange> pieces);

/// A device that is to have a stage.
struct StageDevice {
  const ModelFacts* facts = nullptr;
  StageLoad load = {};
  double room = 0;                                             ///< bytes
  double host_room = std::numeric_limits<double>::infinity();  ///< for data on its host
  friend bool operator==(const StageDevice&, const StageDevice&) = default;
};

/// Whether all of these have room for the units [begin, end), or, interleaved, for as many pieces
/// like that as they have, with one at work at a time: for every end from begin + 1 on.
std::vector<bool> fitting_ends(std::span<const StageDevice> devices, std::size_t begin);

}  // namespace bimetal::plan
