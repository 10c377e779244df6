#pragma once
// Memory as large as a shard that is used again. Allocated anew for every step, it would cost a
// page fault per 4 KiB each time. Private to shard_store.cpp.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace bimetal::parallel::server {

/// Flat tensors of one length and type. Use from one thread.
class TensorPool : public std::enable_shared_from_this<TensorPool> {
 public:
  TensorPool(std::int64_t elements, torch::ScalarType type) : elements_(elements), type_(type) {}

  /// With whatever it last held.
  torch::Tensor take();

  /// `tensor`: from take(). Memory that something else still refers to is left to that.
  void give_back(torch::Tensor tensor);

  /// A tensor that is given back when the last reference goes, if the pool is still there.
  std::shared_ptr<const torch::Tensor> share(torch::Tensor tensor);

  /// From now on no more than `most` wait to be taken.
  void keep(std::size_t most);
  std::size_t waiting() const noexcept { return free_.size(); }

 private:
  const std::int64_t elements_;
  const torch::ScalarType type_;
  std::size_t most_ = 1;
  std::vector<torch::Tensor> free_;
};

}  // namespace bimetal::parallel::server
