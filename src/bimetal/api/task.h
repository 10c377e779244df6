#pragma once
// The task, model and data that a program defines itself: docs/tasks.md.

#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "bimetal/task/task.h"
#include "bimetal/task/tensor_ranks.h"
#include "bimetal/task/unit.h"

namespace bimetal {

using task::Dataset;
using task::make_unit;
using task::Metric;
using task::Model;
using task::Task;
using task::Unit;
using task::Values;

// For units whose tensors may be in parts (PipelineOptions::tensor): docs/cpp.md.
using task::cross_entropy_sum;
using task::part_here;
using task::positions_here;
using task::shared_by_tensor_ranks;
using task::sum_over_tensor_ranks;
using task::TensorSplit;

/// Rows of tensors in memory, which must not change: sample i is row i of each.
class TensorDataset : public Dataset {
 public:
  /// `weights`: one for each sample, as in Dataset::weight(); empty: 1 each. Error(InvalidArgument)
  /// for tensors of unequal length or on a device, and for other weights than one for each.
  explicit TensorDataset(Values tensors, std::vector<std::int64_t> weights = {});

  std::int64_t size() const override { return tensors_.front().size(0); }
  std::int64_t weight(std::int64_t sample) const override {
    return weights_.empty() ? 1 : weights_.at(static_cast<std::size_t>(sample));
  }
  Values batch(std::span<const std::int64_t> samples) const override;

 private:
  Values tensors_;
  std::vector<std::int64_t> weights_;
};

// A model's parameters and buffers as a safetensors file.

/// Under their libtorch names, or those of a task's model (DataParallel::model); `path` holds the
/// old or the new model, never a part. Errors of checkpoint::save_model.
void save(const task::ModelState& model, const std::filesystem::path& path);
/// The same of a module.
template <typename Contained>
void save(const torch::nn::ModuleHolder<Contained>& model, const std::filesystem::path& path) {
  save(task::ModelState(*model), path);
}

/// The way back, into a model of the same shape. Nothing changes unless all fits. Errors of
/// checkpoint::load_model.
void load(const task::ModelState& model, const std::filesystem::path& path);
/// The same of a module.
template <typename Contained>
void load(torch::nn::ModuleHolder<Contained>& model, const std::filesystem::path& path) {
  load(task::ModelState(*model), path);
}

}  // namespace bimetal
