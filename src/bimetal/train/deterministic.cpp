#include "bimetal/train/deterministic.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <cstdlib>

#include "bimetal/base/error.h"

namespace bimetal::train {

void require_deterministic(const job::JobConfig& job, int ranks) {
  if (!job.train.deterministic) return;
  if (job.parallel.mode == "server") {
    throw Error(ErrorCode::Unsupported,
                "train.deterministic does not go with parallel.mode = \"server\": gradients are "
                "added up in the order in which they arrive; take \"all_reduce\"");
  }
  if (ranks > 1 && job.parallel.balance == balance::Policy::Auto) {
    throw Error(ErrorCode::Unsupported,
                "train.deterministic does not go with parallel.balance = \"auto\": shares follow "
                "the measured speed, and sums are rounded otherwise with other shares; take "
                "\"equal\", or numbers such as [3, 1]");
  }
}

Deterministic::Deterministic(const job::TrainConfig& job) : on_(job.deterministic) {
  if (!on_) return;
  // cuBLAS reads it when it is first used, and has no other way to ask.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setDeterministicMkldnn(true);
  context.setBenchmarkCuDNN(false);
}

Deterministic::~Deterministic() {
  if (!on_) return;
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(false, /*warn_only=*/false);
  context.setDeterministicCuDNN(false);
  context.setDeterministicMkldnn(false);
}

std::optional<std::string> nondeterministic_operation(const std::string& error) {
  const auto words = error.find(" does not have a deterministic implementation");
  if (words == std::string::npos) return std::nullopt;
  const auto line = error.rfind('\n', words);
  const auto begin = line == std::string::npos ? 0 : line + 1;
  return fmt::format(
      "train.deterministic: '{}' has no deterministic kernel on this device; put another operation "
      "in its place, train on another device, or set train.deterministic = false",
      error.substr(begin, words - begin));
}

}  // namespace bimetal::train
