#include "bimetal/python_host/hosted_task.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "bimetal/device/device.h"

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

namespace py = pybind11;

namespace {

using Fields = std::map<std::string, torch::Tensor>;

}  // namespace

HostedOptimizer::HostedOptimizer(const py::object& hosted, std::vector<torch::Tensor> parameters)
    : ForeignOptimizer(parameters, py::cast<std::string>(hosted.attr("kind"))),
      hosted_(hosted),
      parameters_(std::move(parameters)) {}

torch::Tensor HostedOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) loss = closure();
  take_restored();
  in_python("the optimizer's step has failed", [&] { (*hosted_).attr("step")(); });
  show_state();
  return loss;
}

void HostedOptimizer::take_restored() {
  const auto first = state().find(parameters_.front().unsafeGetTensorImpl());
  if (first == state().end() || first->second.get() == shown_) return;
  in_python("the optimizer cannot take the checkpoint's state", [&] {
    py::list states;
    for (const auto& parameter : parameters_) {
      const auto found = state().find(parameter.unsafeGetTensorImpl());
      states.append(found == state().end()
                        ? Fields()
                        : static_cast<const optim::ForeignState&>(*found->second).tensors);
    }
    (*hosted_).attr("restore")(states);
  });
}

void HostedOptimizer::show_state() {
  const auto states = in_python("the optimizer's state cannot be kept", [&] {
    return py::cast<std::vector<Fields>>((*hosted_).attr("states")());
  });
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto shown = std::make_unique<optim::ForeignState>();
    shown->tensors = states[i];
    if (i == 0) shown_ = shown.get();
    state()[parameters_[i].unsafeGetTensorImpl()] = std::move(shown);
  }
}

namespace {

namespace py = pybind11;

using Named = std::vector<std::pair<std::string, torch::Tensor>>;

std::vector<task::NamedTensor> named_tensors(const py::handle& pairs) {
  std::vector<task::NamedTensor> tensors;
  for (auto& [name, tensor] : py::cast<Named>(pairs)) tensors.push_back({name, tensor});
  return tensors;
}

/// bimetal.task.hosted.HostedUnit as a unit.
task::Unit unit_of(const py::object& hosted) {
  task::Unit unit;
  unit.name = py::cast<std::string>(hosted.attr("name"));
  unit.parameters = named_tensors(hosted.attr("parameters"));
  unit.buffers = named_tensors(hosted.attr("buffers"));
  const auto failed = fmt::format("unit {} of the model has failed", unit.name);
  unit.forward = [forward = Held(hosted.attr("forward")), failed](const task::Values& inputs) {
    return in_python(failed, [&] { return values_of((*forward)(tuple_of(inputs))); });
  };
  unit.set_training = [train = Held(hosted.attr("train")), failed](bool on) {
    in_python(failed, [&] { (*train)(on); });
  };
  return unit;
}

task::Metric metric_of(const py::object& hosted) {
  task::Metric metric{.name = py::cast<std::string>(hosted.attr("name"))};
  const auto failed = fmt::format("metric {} has failed", metric.name);
  if (const py::object sum = hosted.attr("sum"); !sum.is_none()) {
    metric.sum = [sum = Held(sum), failed](const task::Values& outputs, const task::Values& batch) {
      return in_python(failed, [&] {
        return py::cast<torch::Tensor>((*sum)(tuple_of(outputs), tuple_of(batch)));
      });
    };
  }
  if (const py::object of_mean = hosted.attr("of_mean"); !of_mean.is_none()) {
    metric.of_mean = [of_mean = Held(of_mean), failed](double mean) {
      return in_python(failed, [&] { return py::cast<double>((*of_mean)(mean)); });
    };
  }
  return metric;
}

std::shared_ptr<const HostedDataset> dataset_of(const py::object& hosted, torch::Dtype dtype) {
  return hosted.is_none() ? nullptr : std::make_shared<HostedDataset>(hosted, dtype);
}

}  // namespace

HostedTask::HostedTask(const py::object& task, const job::JobConfig& job)
    : make_units_(task.attr("make_units")),
      inputs_(task.attr("inputs")),
      loss_sum_(task.attr("loss_sum")),
      make_optimizer_(task.attr("make_optimizer")),
      description_{.name = job.model.python, .dtype = job.train.dtype},
      training_(dataset_of(task.attr("training"), device::dtype_named(job.train.dtype))),
      evaluation_(dataset_of(task.attr("evaluation"), device::dtype_named(job.train.dtype))),
      facts_(py::cast<std::vector<std::string>>(task.attr("facts"))),
      counts_(py::cast<std::string>(task.attr("counts"))),
      has_optimizer_(py::cast<bool>(task.attr("has_optimizer"))) {
  for (const auto& metric : task.attr("metrics")) {
    metrics_.push_back(metric_of(py::reinterpret_borrow<py::object>(metric)));
  }
}

task::Model HostedTask::make_model() const {
  return in_python("making the model has failed", [&] {
    task::Model model;
    for (const auto& unit : (*make_units_)()) {
      model.units.push_back(unit_of(py::reinterpret_borrow<py::object>(unit)));
    }
    return model;
  });
}

task::Values HostedTask::inputs(const task::Values& batch) const {
  return in_python("the task's inputs have failed",
                   [&] { return values_of((*inputs_)(tuple_of(batch))); });
}

torch::Tensor HostedTask::loss_sum(const task::Values& outputs, const task::Values& batch) const {
  return in_python("the task's loss_sum has failed", [&] {
    return py::cast<torch::Tensor>((*loss_sum_)(tuple_of(outputs), tuple_of(batch)));
  });
}

std::unique_ptr<torch::optim::Optimizer> HostedTask::make_optimizer(
    const std::vector<torch::Tensor>& parameters) const {
  return in_python("making the optimizer has failed", [&] {
    return std::make_unique<HostedOptimizer>((*make_optimizer_)(tuple_of(parameters)), parameters);
  });
}

std::shared_ptr<const task::JobTask> host_task(const job::JobConfig& job) {
  return in_python(fmt::format("model.python = \"{}\" cannot be used", job.model.python), [&] {
    const auto load = py::module_::import("bimetal.task.hosted").attr("load");
    return std::make_shared<const HostedTask>(load(job.model.python, job::to_json(job)), job);
  });
}

}  // namespace bimetal::python_host
