#include "bimetal/parallel/server/tensor_pool.h"

#include <torch/csrc/api/include/torch/types.h>

#include <utility>

namespace bimetal::parallel::server {

torch::Tensor TensorPool::take() {
  if (free_.empty()) return torch::empty({elements_}, type_);
  auto tensor = std::move(free_.back());
  free_.pop_back();
  return tensor;
}

void TensorPool::give_back(torch::Tensor tensor) {
  // An optimizer may have kept a view of a gradient.
  if (free_.size() < most_ && tensor.storage().use_count() == 1) free_.push_back(std::move(tensor));
}

std::shared_ptr<const torch::Tensor> TensorPool::share(torch::Tensor tensor) {
  return {new torch::Tensor(std::move(tensor)), [pool = weak_from_this()](torch::Tensor* shared) {
            const std::unique_ptr<torch::Tensor> last(shared);
            if (const auto here = pool.lock()) here->give_back(std::move(*last));
          }};
}

void TensorPool::keep(std::size_t most) {
  most_ = most;
  if (free_.size() > most_) free_.resize(most_);
}

}  // namespace bimetal::parallel::server
