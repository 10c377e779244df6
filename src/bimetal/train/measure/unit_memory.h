#pragma once
// A model of which one unit's parameters are in memory at a time: what a dry run needs where the
// whole is too large for this rank.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "bimetal/task/task.h"

namespace bimetal::train {

/// Its parameters have sizes and types, and zeros for values while they are held. What several
/// units use is held from its first use to drop_all(). Use from one thread.
class UnitMemory {
 public:
  /// Nothing: the task makes its models whole.
  static std::optional<UnitMemory> make(const task::Task& task, const torch::Device& device,
                                        torch::Dtype dtype);

  const task::Model& model() const noexcept { return model_; }

  void hold(std::size_t unit);
  void drop(std::size_t unit);
  void drop_all();
  std::int64_t held_bytes() const noexcept { return held_; }

 private:
  struct Part {
    torch::Tensor tensor;
    bool shared = false;
    bool there = false;
  };

  explicit UnitMemory(task::Model model);
  void drop(Part& part);

  task::Model model_;
  std::vector<Part> parts_;
  std::vector<std::vector<std::size_t>> of_unit_;  ///< indices of parts
  std::int64_t held_ = 0;
};

}  // namespace bimetal::train
