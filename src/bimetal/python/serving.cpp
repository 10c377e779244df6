#include <ATen/ATen.h>

#include <cstring>
#include <memory>
#include <string>
#include <tuple>

#include "bimetal/base/error.h"
#include "bimetal/python/bindings.h"
#include "bimetal/serving/client.h"

namespace bimetal::python {
namespace {

namespace py = pybind11;

Deadline deadline_in(double seconds) {
  return Deadline::after(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
}

class PredictionClient {
 public:
  PredictionClient(const std::string& address, const std::string& token_file)
      : client_({net::parse_endpoint(address),
                 token_file.empty() ? net::Token::from_environment()
                                    : net::Token::from_file(token_file),
                 net::encryption_from_environment()}) {}

  py::dict facts(double seconds) {
    serving::ModelFacts facts;
    {
      const py::gil_scoped_release no_gil;
      facts = client_.facts(deadline_in(seconds));
    }
    py::dict all;
    all["model"] = facts.model;
    all["release"] = facts.release;
    all["channels"] = facts.channels;
    all["height"] = facts.height;
    all["width"] = facts.width;
    all["classes"] = facts.classes;
    all["mean"] = facts.mean;
    all["stddev"] = facts.stddev;
    all["dtype"] = std::string(comm::to_string(facts.dtype));
    return all;
  }

  /// `samples`: on the CPU and contiguous.
  std::tuple<at::Tensor, std::int64_t, std::int64_t> predict(const at::Tensor& samples,
                                                             double seconds) {
    const py::gil_scoped_release no_gil;
    const std::span bytes(static_cast<const std::byte*>(samples.const_data_ptr()),
                          samples.nbytes());
    const auto said =
        client_.predict(bytes, dtype_of(samples), samples.size(0), deadline_in(seconds));
    const auto n = samples.size(0);
    auto logits = at::empty({n, static_cast<std::int64_t>(said.logits.size()) / n}, at::kDouble);
    std::memcpy(logits.mutable_data_ptr(), said.logits.data(), logits.nbytes());
    return {logits, said.weights.oldest, said.weights.newest};
  }

  py::dict figures(double seconds) {
    serving::Figures figures;
    {
      const py::gil_scoped_release no_gil;
      figures = client_.figures(deadline_in(seconds));
    }
    py::dict all;
    all["requests"] = figures.requests;
    all["samples"] = figures.samples;
    all["batches"] = figures.batches;
    all["refused"] = figures.refused;
    all["clients"] = figures.clients;
    all["latency_median_s"] = figures.latency_median_s;
    all["latency_p99_s"] = figures.latency_p99_s;
    return all;
  }

 private:
  static comm::DType dtype_of(const at::Tensor& samples) {
    switch (samples.scalar_type()) {
      case at::kByte: return comm::DType::uint8;
      case at::kFloat: return comm::DType::float32;
      case at::kDouble: return comm::DType::float64;
      default: break;
    }
    throw Error(ErrorCode::InvalidArgument,
                "samples must be uint8 (pixels), or float32 or float64 (normalised)");
  }

  serving::Client client_;
};

}  // namespace

void bind_serving(py::module_& module) {
  py::class_<PredictionClient>(module, "PredictionClient")
      .def(py::init<const std::string&, const std::string&>(), py::arg("address"),
           py::arg("token_file"))
      .def("facts", &PredictionClient::facts, py::arg("seconds"))
      .def("predict", &PredictionClient::predict, py::arg("samples"), py::arg("seconds"))
      .def("figures", &PredictionClient::figures, py::arg("seconds"));
}

}  // namespace bimetal::python
