#pragma once
// A data set written in Python.

#include <cstdint>
#include <span>
#include <vector>

#include "bimetal/python_host/calls.h"
#include "bimetal/task/dataset.h"

namespace bimetal::python_host {

class HostedDataset final : public task::Dataset {
 public:
  /// `dataset`: bimetal.task.hosted.HostedDataset; `dtype`: of the floating-point tensors in
  /// batches. With the interpreter's lock.
  HostedDataset(const pybind11::object& dataset, torch::Dtype dtype);

  std::int64_t size() const override { return size_; }
  std::int64_t weight(std::int64_t sample) const override;
  task::Values batch(std::span<const std::int64_t> samples) const override;

 private:
  std::int64_t size_;
  std::vector<std::int64_t> weights_;  ///< empty: all weigh 1
  Held make_batch_;
  torch::Dtype dtype_;
};

}  // namespace bimetal::python_host
