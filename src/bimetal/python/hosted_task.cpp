#include "bimetal/python/hosted_task.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "bimetal/device/device.h"
#include "bimetal/device/out_of_memory.h"

namespace bimetal::python {
namespace {

Error error_of(const PythonError& error, const std::string& what) {
  const bool no_memory =
      error.is_memory_error() || device::is_out_of_memory(std::current_exception());
  // Nobody else knows the way through the user's own code.
  auto trace =
      Object(PyImport_ImportModule("traceback")).attribute("format_exception")(error.raised());
  std::string text;
  for (const auto& line : trace.as<std::vector<std::string>>()) text += line;
  while (text.ends_with('\n')) text.pop_back();
  return Error(no_memory ? ErrorCode::OutOfMemory : ErrorCode::InvalidArgument,
               fmt::format("{}:\n{}", what, text));
}

/// `call()` with Python's lock. Its result must not be a Python object. Errors: those of `call`;
/// OutOfMemory for Python's MemoryError; for other Python exceptions InvalidArgument: "<what>:" and
/// the traceback.
template <class Call>
auto in_python(const std::string& what, Call&& call) {
  const Locked locked;
  try {
    return std::forward<Call>(call)();
  } catch (const PythonError& error) {
    throw error_of(error, what);
  }
}

/// As users' functions get tensors.
Object as_tuple(const task::Values& values) {
  return Object(PySequence_Tuple(to_python(values).get()));
}

}  // namespace
HostedDataset::HostedDataset(const Object& dataset, torch::Dtype dtype)
    : size_(dataset.attribute("size").as<std::int64_t>()),
      weights_(dataset.attribute("weights").as<std::vector<std::int64_t>>()),
      make_batch_(dataset.attribute("batch")),
      dtype_(dtype) {}

std::int64_t HostedDataset::weight(std::int64_t sample) const {
  return weights_.empty() ? 1 : weights_[static_cast<std::size_t>(sample)];
}

task::Values HostedDataset::batch(std::span<const std::int64_t> samples) const {
  auto values = in_python("the data set's batch has failed", [&] {
    return (*make_batch_)(std::vector(samples.begin(), samples.end())).as<task::Values>();
  });
  for (auto& value : values) {
    if (value.is_floating_point()) value = value.to(dtype_);
  }
  return values;
}

namespace {

using Fields = std::map<std::string, torch::Tensor>;

}  // namespace

HostedOptimizer::HostedOptimizer(const Object& hosted, std::vector<torch::Tensor> parameters)
    : ForeignOptimizer(parameters, hosted.attribute("kind").as<std::string>()),
      hosted_(hosted),
      parameters_(std::move(parameters)) {}

torch::Tensor HostedOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) loss = closure();
  take_restored();
  in_python("the optimizer's step has failed", [&] { (*hosted_).attribute("step")(); });
  show_state();
  return loss;
}

void HostedOptimizer::take_restored() {
  const auto first = state().find(parameters_.front().unsafeGetTensorImpl());
  if (first == state().end() || first->second.get() == shown_) return;
  in_python("the optimizer cannot take the checkpoint's state", [&] {
    std::vector<Fields> states;
    for (const auto& parameter : parameters_) {
      const auto found = state().find(parameter.unsafeGetTensorImpl());
      states.push_back(found == state().end()
                           ? Fields()
                           : static_cast<const optim::ForeignState&>(*found->second).tensors);
    }
    (*hosted_).attribute("restore")(states);
  });
}

void HostedOptimizer::show_state() {
  const auto states = in_python("the optimizer's state cannot be kept", [&] {
    return (*hosted_).attribute("states")().as<std::vector<Fields>>();
  });
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto shown = std::make_unique<optim::ForeignState>();
    shown->tensors = states[i];
    if (i == 0) shown_ = shown.get();
    state()[parameters_[i].unsafeGetTensorImpl()] = std::move(shown);
  }
}

namespace {

using Named = std::vector<task::NamedTensor>;

/// bimetal.task.hosted.HostedUnit as a unit.
task::Unit unit_of(const Object& hosted) {
  task::Unit unit;
  unit.name = hosted.attribute("name").as<std::string>();
  unit.parameters = hosted.attribute("parameters").as<Named>();
  unit.buffers = hosted.attribute("buffers").as<Named>();
  const auto failed = fmt::format("unit {} of the model has failed", unit.name);
  unit.forward = [forward = Held(hosted.attribute("forward")), failed](const task::Values& inputs) {
    return in_python(failed, [&] { return (*forward)(as_tuple(inputs)).as<task::Values>(); });
  };
  unit.set_training = [train = Held(hosted.attribute("train")), failed](bool on) {
    in_python(failed, [&] { (*train)(on); });
  };
  return unit;
}

task::Metric metric_of(const Object& hosted) {
  task::Metric metric{.name = hosted.attribute("name").as<std::string>()};
  const auto failed = fmt::format("metric {} has failed", metric.name);
  if (const Object sum = hosted.attribute("sum"); !sum.is_none()) {
    metric.sum = [sum = Held(sum), failed](const task::Values& outputs, const task::Values& batch) {
      return in_python(
          failed, [&] { return (*sum)(as_tuple(outputs), as_tuple(batch)).as<torch::Tensor>(); });
    };
  }
  if (const Object of_mean = hosted.attribute("of_mean"); !of_mean.is_none()) {
    metric.of_mean = [of_mean = Held(of_mean), failed](double mean) {
      return in_python(failed, [&] { return (*of_mean)(mean).as<double>(); });
    };
  }
  return metric;
}

std::shared_ptr<const HostedDataset> dataset_of(const Object& hosted, torch::Dtype dtype) {
  return hosted.is_none() ? nullptr : std::make_shared<HostedDataset>(hosted, dtype);
}

}  // namespace

HostedTask::HostedTask(const Object& task, const job::JobConfig& job)
    : make_units_(task.attribute("make_units")),
      inputs_(task.attribute("inputs")),
      loss_sum_(task.attribute("loss_sum")),
      make_optimizer_(task.attribute("make_optimizer")),
      description_{.name = job.model.python, .dtype = job.train.dtype},
      training_(dataset_of(task.attribute("training"), device::dtype_named(job.train.dtype))),
      evaluation_(dataset_of(task.attribute("evaluation"), device::dtype_named(job.train.dtype))),
      facts_(task.attribute("facts").as<std::vector<std::string>>()),
      counts_(task.attribute("counts").as<std::string>()),
      has_optimizer_(task.attribute("has_optimizer").as<bool>()) {
  for (const auto& metric : task.attribute("metrics").as<std::vector<Object>>()) {
    metrics_.push_back(metric_of(metric));
  }
}

task::Model HostedTask::make_model() const {
  return in_python("making the model has failed", [&] {
    task::Model model;
    for (const auto& unit : (*make_units_)().as<std::vector<Object>>()) {
      model.units.push_back(unit_of(unit));
    }
    return model;
  });
}

task::Values HostedTask::inputs(const task::Values& batch) const {
  return in_python("the task's inputs have failed",
                   [&] { return (*inputs_)(as_tuple(batch)).as<task::Values>(); });
}

torch::Tensor HostedTask::loss_sum(const task::Values& outputs, const task::Values& batch) const {
  return in_python("the task's loss_sum has failed", [&] {
    return (*loss_sum_)(as_tuple(outputs), as_tuple(batch)).as<torch::Tensor>();
  });
}

std::unique_ptr<torch::optim::Optimizer> HostedTask::make_optimizer(
    const std::vector<torch::Tensor>& parameters) const {
  return in_python("making the optimizer has failed", [&] {
    return std::make_unique<HostedOptimizer>((*make_optimizer_)(as_tuple(parameters)), parameters);
  });
}

std::shared_ptr<const task::JobTask> host_task(const job::JobConfig& job) {
  return in_python(fmt::format("model.python = \"{}\" cannot be used", job.model.python), [&] {
    const auto load = Object(PyImport_ImportModule("bimetal.task.hosted")).attribute("load");
    return std::make_shared<const HostedTask>(load(job.model.python, job::to_json(job)), job);
  });
}

}  // namespace bimetal::python
