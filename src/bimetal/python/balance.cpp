#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/base/error.h"
#include "bimetal/data/sampler.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

namespace py = pybind11;
using balance::Balancer;
using data::EpochSampler;

Balancer make_balancer(int ranks, std::int64_t global_batch, const std::string& policy,
                       std::vector<double> weights,
                       const std::vector<std::pair<double, double>>& probes) {
  std::vector<balance::Device> devices(static_cast<std::size_t>(ranks));
  if (!probes.empty() && probes.size() != devices.size()) {
    throw Error(ErrorCode::InvalidArgument, "a probe is needed for every rank, or for none");
  }
  for (std::size_t rank = 0; rank < probes.size(); ++rank) {
    const auto [alpha, beta] = probes[rank];
    if (alpha != 0 || beta != 0) devices[rank].cost = balance::CostModel(alpha, beta);
  }
  return Balancer({.policy = balance::policy_named(policy),
                   .fixed_weights = std::move(weights),
                   .global_batch = global_batch},
                  std::move(devices));
}

bool observe(Balancer& balancer, const std::vector<std::int64_t>& batches,
             const std::vector<double>& seconds, const std::vector<std::int64_t>& shadow_batches,
             const std::vector<double>& shadow_seconds, const std::vector<bool>& out_of_memory) {
  std::vector<balance::StepFigures> figures(batches.size());
  const auto fits = [&](const auto& values) {
    return values.empty() || values.size() == figures.size();
  };
  if (seconds.size() != figures.size() || shadow_batches.size() != shadow_seconds.size() ||
      !fits(shadow_batches) || !fits(out_of_memory)) {
    throw Error(ErrorCode::InvalidArgument, "a batch size and a time are needed for every rank");
  }
  for (std::size_t rank = 0; rank < figures.size(); ++rank) {
    auto& mine = figures[rank];
    mine.batch = batches[rank];
    mine.compute_seconds = seconds[rank];
    if (!out_of_memory.empty()) mine.out_of_memory = out_of_memory[rank];
    if (shadow_batches.empty()) continue;
    mine.shadow_batch = shadow_batches[rank];
    mine.shadow_seconds = shadow_seconds[rank];
  }
  return balancer.observe(figures);
}

py::tuple deal(EpochSampler& sampler, const std::vector<std::int64_t>& shares, std::int64_t samples,
               int rank) {
  const auto step = sampler.deal(shares, samples);
  const auto mine = step.of_rank(rank);
  return py::make_tuple(step.counts, step.weights,
                        std::vector<std::int64_t>(mine.begin(), mine.end()), step.indices.front());
}

}  // namespace

void bind_balance(py::module_& module) {
  py::class_<Balancer>(module, "Balancer")
      .def(py::init(&make_balancer), py::arg("ranks"), py::arg("global_batch"),
           py::arg("policy") = "auto", py::arg("weights") = std::vector<double>(),
           py::arg("probes") = std::vector<std::pair<double, double>>())
      .def_property_readonly("shares", [](const Balancer& self) { return self.shares(); })
      .def("observe", observe, py::arg("batches"), py::arg("seconds"),
           py::arg("shadow_batches") = std::vector<std::int64_t>(),
           py::arg("shadow_seconds") = std::vector<double>(),
           py::arg("out_of_memory") = std::vector<bool>())
      .def("alone_rate", &Balancer::alone_rate, py::arg("rank"));
  py::class_<EpochSampler>(module, "EpochSampler")
      .def(py::init<std::int64_t, std::uint64_t, bool, std::vector<std::int64_t>>(),
           py::arg("dataset_size"), py::arg("seed"), py::arg("shuffle"),
           py::arg("weights") = std::vector<std::int64_t>())
      .def_property_readonly("remaining", &EpochSampler::remaining)
      .def_property_readonly("position",
                             [](const EpochSampler& self) {
                               const auto at = self.position();
                               return std::pair(at.epoch, at.offset);
                             })
      .def(
          "seek",
          [](EpochSampler& self, std::int64_t epoch, std::int64_t offset) {
            self.seek({epoch, offset});
          },
          py::arg("epoch"), py::arg("offset"))
      .def("mean_weight", &EpochSampler::mean_weight, py::arg("samples"))
      .def("deal", deal, py::arg("shares"), py::arg("samples"), py::arg("rank"));
}

}  // namespace bimetal::python
