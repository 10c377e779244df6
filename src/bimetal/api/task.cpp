#include "bimetal/api/task.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/model_file.h"

namespace bimetal {
namespace {

void require(bool right, const std::string& why) {
  if (!right) throw Error(ErrorCode::InvalidArgument, "TensorDataset: " + why);
}

}  // namespace

void save(const task::ModelState& model, const std::filesystem::path& path) {
  checkpoint::save_model(model, path);
}

void load(const task::ModelState& model, const std::filesystem::path& path) {
  checkpoint::load_model(model, path);
}

TensorDataset::TensorDataset(Values tensors, std::vector<std::int64_t> weights)
    : tensors_(std::move(tensors)), weights_(std::move(weights)) {
  require(!tensors_.empty(), "no tensors");
  for (const auto& tensor : tensors_) {
    const bool fits = tensor.defined() && tensor.dim() > 0 && tensor.size(0) == size();
    require(fits && size() > 0, "the first dimension of each tensor has to be the samples");
    require(tensor.is_cpu(), "tensors have to lie on the CPU: batches go to the job's device");
  }
  require(weights_.empty() || std::ssize(weights_) == size(),
          fmt::format("{} weights for {} samples: give one for each", weights_.size(), size()));
  require(std::ranges::all_of(weights_, [](std::int64_t weight) { return weight >= 1; }),
          "a weight is at least 1");
}

Values TensorDataset::batch(std::span<const std::int64_t> samples) const {
  const torch::NoGradGuard no_grad;
  const auto rows = torch::tensor(torch::ArrayRef<std::int64_t>(samples), torch::kInt64);
  Values batch;
  for (const auto& tensor : tensors_) batch.push_back(tensor.index_select(0, rows));
  return batch;
}

}  // namespace bimetal
