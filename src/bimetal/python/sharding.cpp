#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/device/probe.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/shard/hooked_model.h"
#include "bimetal/parallel/shard/memory_weights.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

namespace py = pybind11;
using parallel::shard::HookedModel;
using parallel::shard::Kept;
using parallel::shard::Piece;
using Tensors = std::vector<torch::Tensor>;
using NamedPairs = std::vector<std::pair<std::string, torch::Tensor>>;
/// Its name, trained parameters and buffers.
using UnitParts = std::tuple<std::string, NamedPairs, NamedPairs>;

using Holder = EndsWithoutLock<HookedModel>;

std::vector<task::NamedTensor> named_tensors_of(const NamedPairs& pairs) {
  std::vector<task::NamedTensor> tensors;
  for (const auto& [name, tensor] : pairs) tensors.push_back({name, tensor});
  return tensors;
}

task::Model model_of(const std::vector<UnitParts>& parts) {
  task::Model model;
  for (const auto& [name, parameters, buffers] : parts) {
    model.units.push_back({.name = name,
                           .parameters = named_tensors_of(parameters),
                           .buffers = named_tensors_of(buffers),
                           .forward = [](const task::Values& inputs) { return inputs; }});
  }
  return model;
}

Kept kept_named(const std::string& name) {
  if (name == "none") return Kept::OnDevice;
  if (name == "host") return Kept::OnHost;
  if (name == "disk") return Kept::OnDisk;
  throw Error(ErrorCode::InvalidArgument,
              "parameters cannot be offloaded to '" + name + "': none, host or disk");
}

Holder make_hooked(const ProcessGroup& process_group, const std::vector<UnitParts>& units,
                   int level, std::vector<double> weights, std::size_t flat_bytes,
                   const std::string& kept, const std::string& folder, std::int64_t keep_below,
                   bool hollow) {
  const auto& group = process_group.group;
  const py::gil_scoped_release unlocked;
  return Holder(new HookedModel(model_of(units), group,
                                {.level = level,
                                 .weights = std::move(weights),
                                 .flat_bytes = flat_bytes,
                                 .kept = kept_named(kept),
                                 .folder = folder,
                                 .timeout = process_group.timeout,
                                 .hollow = hollow,
                                 .form = {.keep_below = keep_below}}));
}

/// (name, the parameter's shape, first element, this rank's part as a leaf) of each.
std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::int64_t, torch::Tensor>>
pieces_of(HookedModel& model) {
  std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::int64_t, torch::Tensor>> all;
  for (const auto& piece : model.sharded().pieces()) {
    all.emplace_back(piece.parameter, piece.shape, piece.range.offset, piece.tensor);
  }
  return all;
}

NamedPairs gather(HookedModel& model, const std::vector<std::optional<torch::Tensor>>& parts,
                  std::optional<int> root) {
  const auto& pieces = model.sharded().pieces();
  if (parts.size() != pieces.size()) {
    throw Error(ErrorCode::InvalidArgument, "gather() needs something, or None, for each piece");
  }
  const auto part = [&](const Piece& piece) {
    return parts[static_cast<std::size_t>(&piece - pieces.data())].value_or(torch::Tensor());
  };
  NamedPairs gathered;
  const auto everyone = parallel::shard::ShardedModel::kEveryRank;
  for (auto& [name, tensor] : model.sharded().gather(part, root.value_or(everyone))) {
    gathered.emplace_back(name, tensor);
  }
  return gathered;
}

double device_speed(const std::string& device) {
  return device::product_speed(torch::Device(device));
}

std::vector<double> memory_weights(const ProcessGroup& process_group, const std::string& device) {
  return parallel::shard::weights_by_memory(process_group.group, torch::Device(device),
                                            Deadline::after(process_group.timeout));
}

}  // namespace

void bind_sharding(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  module.def("device_speed", device_speed, py::arg("device"), no_gil);
  module.def("memory_weights", memory_weights, py::arg("group"), py::arg("device"), no_gil);
  module.def(
      "close_off", [](const torch::Tensor& tensor) { parallel::shard::close_off(tensor); },
      py::arg("tensor"));
  module.def("give_memory", parallel::shard::give_memory, py::arg("tensor"));
  py::class_<HookedModel, Holder>(module, "HookedModel")
      .def(py::init(&make_hooked), py::arg("group"), py::arg("units"), py::arg("level"),
           py::arg("weights"), py::arg("flat_bytes"), py::arg("parameters_on"), py::arg("folder"),
           py::arg("keep_below"), py::arg("hollow"))
      .def_property_readonly("pieces", pieces_of)
      .def_property_readonly("shard_bytes",
                             [](HookedModel& model) { return model.sharded().shard_bytes(); })
      .def("forward_begins", &HookedModel::forward_begins, py::arg("with_backward"), no_gil)
      .def("forward_ends", &HookedModel::forward_ends, no_gil)
      .def("enter", &HookedModel::enter, py::arg("unit"), py::arg("inputs"), no_gil)
      .def("leave", &HookedModel::leave, py::arg("unit"), py::arg("outputs"), no_gil)
      .def_property_readonly("pass_number", &HookedModel::pass)
      .def("backward_begins", &HookedModel::backward_begins, py::arg("pass_number"),
           py::arg("reduce"), no_gil)
      .def("backward_ends", &HookedModel::backward_ends, no_gil)
      .def("finish", &HookedModel::finish, no_gil)
      .def_property_readonly("has_gradients", &HookedModel::has_gradients)
      .def("after_update", &HookedModel::after_update, no_gil)
      .def("end_passes", &HookedModel::end_passes, no_gil)
      .def("hold_whole", &HookedModel::hold_whole, py::arg("names"), no_gil)
      .def("let_go_of_whole", &HookedModel::let_go_of_whole, py::arg("root"), no_gil)
      .def("gather", gather, py::arg("parts"), py::arg("root"), no_gil)
      .def_property_readonly("wait_seconds", &HookedModel::wait_seconds);
}

}  // namespace bimetal::python
