#pragma once
// A task of so many like units, for tests of what is measured of them.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "bimetal/task/task.h"

namespace bimetal::train::test {

class RowData final : public task::Dataset {
 public:
  RowData(std::int64_t size, std::int64_t width) : size_(size), width_(width) {}
  std::int64_t size() const override { return size_; }
  task::Values batch(std::span<const std::int64_t> samples) const override {
    const auto count = static_cast<std::int64_t>(samples.size());
    return {torch::ones({count, width_}), torch::zeros({count})};
  }

 private:
  std::int64_t size_, width_;
};

/// Each unit multiplies rows by a square matrix.
class RowTask final : public task::Task {
 public:
  std::size_t units = 12;
  std::int64_t width = 16, data = 64;
  /// Before each unit computes so many samples.
  std::function<void(std::int64_t samples)> before = {};

  task::Model make_model() const override {
    task::Model model;
    for (std::size_t u = 0; u < units; ++u) {
      const auto weight = (torch::ones({width, width}) / width).set_requires_grad(true);
      model.units.push_back({.name = std::to_string(u),
                             .parameters = {{"weight", weight}},
                             .buffers = {},
                             .forward = [weight, first = before](const task::Values& values) {
                               if (first) first(values.front().size(0));
                               return task::Values{values.front().matmul(weight)};
                             }});
    }
    return model;
  }
  std::shared_ptr<const task::Dataset> training() const override {
    return std::make_shared<RowData>(data, width);
  }
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values&) const override {
    return outputs.front().sum();
  }
};

}  // namespace bimetal::train::test
