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

balance::Policy policy_named(const std::string& name) {
  if (name == "auto") return balance::Policy::Auto;
  if (name == "equal") return balance::Policy::Equal;
  if (name == "fixed") return balance::Policy::Fixed;
  throw Error(ErrorCode::InvalidArgument,
              "the balance '" + name + "' is none of auto, equal and fixed");
}

Balancer make_balancer(int ranks, std::int64_t global_batch, const std::string& policy,
                       std::vector<double> weights) {
  return Balancer({.policy = policy_named(policy),
                   .fixed_weights = std::move(weights),
                   .global_batch = global_batch},
                  std::vector<balance::Device>(static_cast<std::size_t>(ranks)));
}

bool observe(Balancer& balancer, const std::vector<std::int64_t>& batches,
             const std::vector<double>& seconds) {
  if (batches.size() != seconds.size()) {
    throw Error(ErrorCode::InvalidArgument, "a batch size and a time are needed for every rank");
  }
  std::vector<balance::StepFigures> figures;
  for (std::size_t rank = 0; rank < batches.size(); ++rank) {
    figures.push_back({.batch = batches[rank], .compute_seconds = seconds[rank]});
  }
  return balancer.observe(figures);
}

py::tuple next(EpochSampler& sampler, const std::vector<std::int64_t>& shares, int rank) {
  const auto step = sampler.next(shares);
  const auto mine = step.of_rank(rank);
  return py::make_tuple(step.counts, std::vector<std::int64_t>(mine.begin(), mine.end()),
                        step.indices.front());
}

}  // namespace

void bind_balance(py::module_& module) {
  py::class_<Balancer>(module, "Balancer")
      .def(py::init(&make_balancer), py::arg("ranks"), py::arg("global_batch"),
           py::arg("policy") = "auto", py::arg("weights") = std::vector<double>())
      .def_property_readonly("shares", [](const Balancer& self) { return self.shares(); })
      .def("observe", observe, py::arg("batches"), py::arg("seconds"))
      .def("alone_rate", &Balancer::alone_rate, py::arg("rank"));
  py::class_<EpochSampler>(module, "EpochSampler")
      .def(py::init<std::int64_t, std::uint64_t, bool>(), py::arg("dataset_size"), py::arg("seed"),
           py::arg("shuffle"))
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
      .def("next", next, py::arg("shares"), py::arg("rank"));
}

}  // namespace bimetal::python
