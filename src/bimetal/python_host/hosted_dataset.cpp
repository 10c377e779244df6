#include "bimetal/python_host/hosted_dataset.h"

#include <pybind11/stl.h>

namespace bimetal::python_host {

namespace py = pybind11;

HostedDataset::HostedDataset(const py::object& dataset, torch::Dtype dtype)
    : size_(py::cast<std::int64_t>(dataset.attr("size"))),
      weights_(py::cast<std::vector<std::int64_t>>(dataset.attr("weights"))),
      make_batch_(dataset.attr("batch")),
      dtype_(dtype) {}

std::int64_t HostedDataset::weight(std::int64_t sample) const {
  return weights_.empty() ? 1 : weights_[static_cast<std::size_t>(sample)];
}

task::Values HostedDataset::batch(std::span<const std::int64_t> samples) const {
  auto values = in_python("the data set's batch has failed", [&] {
    py::list numbers;
    for (const auto sample : samples) numbers.append(sample);
    return values_of((*make_batch_)(numbers));
  });
  for (auto& value : values) {
    if (value.is_floating_point()) value = value.to(dtype_);
  }
  return values;
}

}  // namespace bimetal::python_host
