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
/// Assumed of a host that steps what an accelerator keeps there, and of the way to it.
inline constexpr double kHostBytesPerS = 1e10;
/// Of states on a disk so much is in memory (optim/offload).
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

/// What a rank does of a step.
struct RankLoad {
  int ranks = 1;
  double shard = 1;            ///< its part of what is in shards, 0…1
  double copied = 0;           ///< the same of another's shard, of which it keeps a copy
  double samples = 1;          ///< its share of the global batch
  double at_once = 1;          ///< samples of its largest micro-batch
  bool host_is_device = true;  ///< a CPU: what is kept on the host is in the same memory
  bool keeps_freed = false;    ///< memory of freed tensors, where there is room (spare_for)
  bool one_host = false;       ///< all ranks see each other's memory, and sum shards there
  double bucket_bytes = 25 << 20;
  /// Of the largest step that it makes before training, to measure its speed, with a model that
  /// nobody shares: levels 0 and 1. 0: none.
  double rehearsed = 0, rehearsed_at_once = 0;
  bool graphs = false;    ///< train.graphs, on a device that has them
  bool evaluates = true;  ///< at some time: levels 1 and 2 then have whole in full what is in half
};

/// Bytes by kind at the moment of a run at which they are most together.
struct MemoryUse {
  double program = 0;     ///< of the process before there is a model: libraries, data
  double parameters = 0;  ///< those gathered for units included
  double gradients = 0;
  double optimizer = 0;
  double activations =
      0;               ///< what forward leaves for backward, and both need on their way; batches
  double buffers = 0;  ///< of what is being sent
  /// Memory of freed tensors that need not be given back: what there is room for, as plan_memory
  /// says. Not among the rest, since at a step's peak next to nothing is free.
  double kept = 0;
  /// Of the host's memory, where the device has its own: what is kept there throughout. Not among
  /// the rest.
  double host = 0;
  std::string_view moment = "";

  double model() const { return parameters + gradients + optimizer + activations + buffers; }
  double peak() const { return program + model(); }
};

/// What a CPU's heap may keep of freed tensors beside the `most` bytes that were in use.
constexpr double spare_for(double most) {
  return most / 16 + (16 << 20);
}

/// What it is to keep of that where so much is `free` beside them: at most half of it, since what a
/// plan does not see wants room, too.
constexpr double kept_beside(double most, double free) {
  return std::clamp(free / 2, 0.0, spare_for(most));
}

/// Whether what is UnitFacts::halved is whole in half, without copies (shard/sharded_model.h).
inline bool whole_in_half(const ModelFacts& facts, const Keeping& keeping) {
  const bool shards = keeping.level == 3 || (keeping.level > 0 && keeping.copies == 1);
  return shards && facts.alike;
}

/// Bytes of all parameters in the types that they are gathered in.
double gathered_bytes(const ModelFacts& facts, const Keeping& keeping);
/// Of those of some units of it.
double gathered_bytes(const ModelFacts& facts, const Keeping& keeping,
                      std::span<const UnitFacts> units);

/// What a step takes to read and write a shard of so many elements where its states or parameters
/// are on a disk: these for each gather and, updated, once.
inline double disk_seconds(const ModelFacts& facts, const Keeping& keeping, double elements,
                           double gathers) {
  double each = 0;  // bytes
  if (keeping.optimizer == Place::Disk) each += 2 * facts.state_bytes;
  if (keeping.parameters == Place::Disk) each += (gathers + 1) * facts.element_bytes;
  return elements * each / kDiskBytesPerS;
}

/// The optimizer's state for so many elements: of what is on a disk, its window.
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
  double shard = 1 / replicas;  ///< its part of what they have in shards, 0…1
  double at_once = 1;           ///< samples of a micro-batch that this device computes
  InFlight in_flight = {};
  Keeping keeping = {};  ///< level over the replicas
  /// Gradients travel in flat tensors of at least so much, level 3's unit by unit.
  double bucket_bytes = 0;
  bool host_is_device = true;  ///< as RankLoad has it
  friend bool operator==(const StageLoad&, const StageLoad&) = default;
};

using parallel::schedule::UnitRange;

/// Most micro-batches whose activations stage `stage` has (schedule.h), of a shape without windows.
/// Micro-batches that the schedule cannot run count as the next that it can.
InFlight in_flight(parallel::schedule::Kind kind, int stage,
                   const parallel::schedule::Shape& shape);

/// Of the `pieces` of the model that one device has, by kind, at their peak: parameters, gradients
/// (those of earlier micro-batches wait), states, buckets of replicas or gradients on their way,
/// and activations: of all micro-batches in flight what forward leaves, what a unit or a group of
/// units that is computed again needs for a time, what autocast copies of parameters and the
/// copies' gradients. The last piece of the model has tensors that units before it use, too.
MemoryUse stage_use(const ModelFacts& facts, std::span<const UnitRange> pieces,
                    const StageLoad& load);
/// Elements that a device with these pieces has of other devices' units: what those before the last
/// piece of the model share with it.
double tied_elements(const ModelFacts& facts, std::span<const UnitRange> pieces);

/// A device that is to have a stage.
struct StageDevice {
  const ModelFacts* facts = nullptr;
  StageLoad load = {};
  double room = 0;                                             ///< bytes
  double host_room = std::numeric_limits<double>::infinity();  ///< of what it keeps on its host
  friend bool operator==(const StageDevice&, const StageDevice&) = default;
};

/// Whether all of these have room for the units [begin, end), or, interleaved, for as many pieces
/// like that as they have, of which one is at work at a time: for every end from begin + 1 on.
std::vector<bool> fitting_ends(std::span<const StageDevice> devices, std::size_t begin);

}  // namespace bimetal::plan
