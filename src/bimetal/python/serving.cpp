#include <ATen/ATen.h>

#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/python/bindings.h"
#include "bimetal/serving/client.h"

namespace bimetal::python {
namespace {

Deadline deadline_in(double seconds) {
  return Deadline::after(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
}

/// By name.
using Facts =
    std::map<std::string, std::variant<std::string, std::int64_t, double, std::vector<double>>>;

std::int64_t whole(std::uint64_t count) {
  return static_cast<std::int64_t>(count);
}

class PredictionClient {
 public:
  PredictionClient(const std::string& address, const std::string& token_file)
      : client_({net::parse_endpoint(address),
                 token_file.empty() ? net::Token::from_environment()
                                    : net::Token::from_file(token_file),
                 net::encryption_from_environment()}) {}

  Facts facts(double seconds) {
    const auto facts = client_.facts(deadline_in(seconds));
    return {{"model", facts.model},
            {"release", facts.release},
            {"channels", facts.channels},
            {"height", facts.height},
            {"width", facts.width},
            {"classes", facts.classes},
            {"mean", facts.mean},
            {"stddev", facts.stddev},
            {"dtype", std::string(comm::to_string(facts.dtype))}};
  }

  /// `samples`: on the CPU and contiguous.
  std::tuple<at::Tensor, std::int64_t, std::int64_t> predict(const at::Tensor& samples,
                                                             double seconds) {
    const std::span bytes(static_cast<const std::byte*>(samples.const_data_ptr()),
                          samples.nbytes());
    const auto said =
        client_.predict(bytes, dtype_of(samples), samples.size(0), deadline_in(seconds));
    const auto n = samples.size(0);
    auto logits = at::empty({n, static_cast<std::int64_t>(said.logits.size()) / n}, at::kDouble);
    std::memcpy(logits.mutable_data_ptr(), said.logits.data(), logits.nbytes());
    return {logits, said.weights.oldest, said.weights.newest};
  }

  Facts figures(double seconds) {
    const auto figures = client_.figures(deadline_in(seconds));
    return {{"requests", whole(figures.requests)},   {"samples", whole(figures.samples)},
            {"batches", whole(figures.batches)},     {"refused", whole(figures.refused)},
            {"clients", whole(figures.clients)},     {"latency_median_s", figures.latency_median_s},
            {"latency_p99_s", figures.latency_p99_s}};
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

void bind_serving(Bindings& bindings) {
  Bindings::Class<PredictionClient>(bindings, "PredictionClient")
      .made_of<const std::string&, const std::string&>()
      .method("facts", &PredictionClient::facts)
      .method("predict", &PredictionClient::predict)
      .method("figures", &PredictionClient::figures);
}

}  // namespace bimetal::python
