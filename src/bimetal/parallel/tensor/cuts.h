#pragma once
// Which part of each of a model's tensors a tensor rank has, according to the splits of its units.
// Cuts tensors into these parts.

#include <torch/csrc/api/include/torch/types.h>

#include <map>
#include <string>
#include <vector>

#include "bimetal/task/tensor_ranks.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::tensor {

/// Where a part lies in its whole: of dimension `dim` it has these, one behind the other, and of
/// all other dimensions everything.
struct PartPlaces {
  std::int64_t dim = 0;
  std::vector<task::Part> places;  ///< one of each segment
};

/// A pure function of names, shapes, splits and weights. Immutable.
class Cuts {
 public:
  /// Of a whole model. Errors: InvalidArgument for a parameter with fewer pieces that stay whole
  /// than ranks, saying how many ranks it could do with; for splits that do not fit their
  /// parameter, or differ for one that two units have; Unsupported for a model without splits.
  Cuts(const task::Model& whole, std::vector<double> weights);

  /// Whether the parameter of that name (its first one) is cut; else every rank has all of it.
  bool has(const std::string& parameter) const { return cuts_.contains(parameter); }

  /// Rank `rank`'s part of `whole`, which has the parameter's shape: a copy, or `whole` itself
  /// where the parameter stays whole.
  torch::Tensor part(const std::string& parameter, const torch::Tensor& whole, int rank) const;

  /// The opposite, of a parameter that is cut: writes rank `rank`'s `part` to its places in
  /// `whole`.
  void put(const std::string& parameter, const torch::Tensor& part, int rank,
           const torch::Tensor& whole) const;

  /// Of a parameter that is cut: where rank `rank`'s part lies in it, the whole's sizes, and the
  /// part's.
  PartPlaces places(const std::string& parameter, int rank) const;
  const std::vector<std::int64_t>& sizes(const std::string& parameter) const;
  std::vector<std::int64_t> part_sizes(const std::string& parameter, int rank) const;

  /// One for each tensor rank.
  const std::vector<double>& weights() const noexcept { return weights_; }
  int ranks() const noexcept { return static_cast<int>(weights_.size()); }

 private:
  struct Cut {
    task::TensorSplit split;
    std::vector<std::int64_t> sizes;   ///< of the whole
    std::vector<std::int64_t> counts;  ///< by rank, of a segment, along the split's dimension
  };
  void add(const task::NamedTensor& parameter, const std::string& unit,
           const task::TensorSplit& split);

  std::vector<double> weights_;
  std::map<std::string, Cut> cuts_;
};

}  // namespace bimetal::parallel::tensor
