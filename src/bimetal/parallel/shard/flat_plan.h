#pragma once
// Which parameters are one after the other in which flat tensor, and which rank keeps which part of
// it. This is the plan of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
// Trillion Parameter Models", SC 2020, §5), with shards as unequal as the ranks. Pure: every rank
// computes the same plan from the same arguments, so it is never sent.

#include <c10/core/TensorImpl.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "bimetal/parallel/data/bucket.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::shard {

struct ParameterPlace {
  torch::ScalarType dtype = torch::kFloat32;
  std::int64_t count = 0;  ///< elements
  std::size_t unit = 0;    ///< the first that uses it
  bool shared = false;     ///< further units use it, too
  /// The type that it has where it is whole; `dtype` is that of what ranks keep of it. Nothing: the
  /// same.
  std::optional<torch::ScalarType> gathered = {};
  bool resident = false;  ///< whole all the time, so small is it
  bool late = false;      ///< its gradient is complete only behind all passes of a step
};

struct FlatPlan {
  using Slot = BucketPlan::Slot;

  torch::ScalarType dtype = torch::kFloat32;     ///< of what ranks keep, and of gradients' sums
  torch::ScalarType gathered = torch::kFloat32;  ///< of the whole
  std::vector<Slot> slots;                       ///< without gaps
  std::int64_t count = 0;                        ///< elements of all slots together
  std::vector<std::size_t> counts;  ///< elements that each rank keeps: contiguous, in its order
  std::size_t unit = 0;             ///< the first that uses any of it
  bool shared = false;              ///< one parameter of several units
  bool resident = false;            ///< whole all the time
  bool late = false;                ///< one parameter whose gradient is complete last
  std::string unit_name = {};       ///< for messages; empty where nobody has said it

  /// The beginning of the part that `rank` keeps.
  std::int64_t begin_of(int rank) const;
};

/// Parameters of one type are taken in their order; a flat tensor ends where a unit ends, once it
/// holds `least_bytes` (0: with every unit), and a shared parameter has one of its own. Late ones,
/// each in one of its own, are the first, before those that resident ones of all units share, whose
/// gradients are complete behind all others. Each is cut by `weights`, one per rank, without
/// padding: a weight of 0 gets nothing. Where ranks get 1024 elements or more on average, cuts lie
/// at the multiples of 64 bytes that are nearest to the weights' fractions. Error(InvalidArgument)
/// for weights that are negative or all 0.
std::vector<FlatPlan> plan_flats(std::span<const ParameterPlace> parameters,
                                 std::span<const double> weights, std::size_t least_bytes);

/// Part of a parameter that a rank keeps.
struct Range {
  std::int64_t offset = 0;  ///< first element, row-major
  std::int64_t count = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

/// The part of a slot that `rank` has; count 0: nothing.
Range kept_of(const FlatPlan& plan, const FlatPlan::Slot& slot, int rank);

// The places at which trained parameters are used. The plan of flat tensors is made from them.

/// Index into a list of trained parameters.
using Places = std::unordered_map<const c10::TensorImpl*, std::size_t>;

Places places_of(const std::vector<task::NamedTensor>& trained);

/// Which parameters are whole, and when (level 3).
struct WholeForm {
  /// Type of float32 parameters that one unit alone uses, and only for products (task/unit.h),
  /// while they are gathered: autocast would make copies of them in that type. Nothing: their own.
  std::optional<torch::ScalarType> half = {};
  /// Parameters of fewer elements that one unit alone uses stay whole; 0: none do.
  std::int64_t keep_below = 0;
};

/// For each of `trained`: its type and size, the first unit of `model` that uses it, whether other
/// units use it, too, and its form.
std::vector<ParameterPlace> describe(const task::Model& model,
                                     const std::vector<task::NamedTensor>& trained,
                                     const WholeForm& form = {});

}  // namespace bimetal::parallel::shard
