#pragma once
// A tensor whose memory is part of a file: the system brings it in as it is looked at.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <future>
#include <memory>

#include "bimetal/optim/offload/state_file.h"

namespace bimetal::optim {

/// Where the next tensor begins: what any disk's block and any system's page is a part of.
constexpr std::uint64_t kFileTensorAlignment = 64 << 10;

/// Use from one thread.
class FileTensor {
 public:
  FileTensor() = default;
  /// `count` elements must lie in the file from `offset` on, which is a multiple of
  /// kFileTensorAlignment for bring() and let_go().
  FileTensor(std::shared_ptr<StateFile> file, std::uint64_t offset, std::int64_t count,
             torch::ScalarType dtype);

  /// Flat, on the CPU; it keeps the file. Undefined of one made without arguments.
  const torch::Tensor& tensor() const noexcept { return tensor_; }
  /// Starts to read what is not in memory, without waiting; a thread does it.
  void bring() noexcept;
  /// Returns once it has been read, beside whatever else since bring(), or now.
  void arrive() noexcept;
  /// Gives its memory back; what was written is in the file.
  void let_go() const noexcept;

 private:
  std::shared_ptr<StateFile> file_;
  std::uint64_t offset_ = 0;
  torch::Tensor tensor_;
  std::shared_future<void> coming_;  ///< valid from bring() to arrive()
};

}  // namespace bimetal::optim
