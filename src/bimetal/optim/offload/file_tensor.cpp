#include "bimetal/optim/offload/file_tensor.h"

#include <torch/csrc/api/include/torch/types.h>

#include <exception>
#include <utility>

namespace bimetal::optim {

FileTensor::FileTensor(std::shared_ptr<StateFile> file, std::uint64_t offset, std::int64_t count,
                       torch::ScalarType dtype)
    : file_(std::move(file)),
      offset_(offset),
      tensor_(torch::from_blob(
          file_->mapped() + offset, {count}, [file = file_](void*) {}, torch::dtype(dtype))) {}

void FileTensor::bring() noexcept {
  if (!file_ || tensor_.numel() == 0 || coming_.valid()) return;
  try {
    coming_ =
        std::async(std::launch::async, [file = file_, offset = offset_, bytes = tensor_.nbytes()] {
          file->bring_mapped(offset, bytes);
        });
  } catch (const std::exception&) {
    // No thread to be had: it is read when it is due.
  }
}

void FileTensor::arrive() noexcept {
  if (!file_) return;
  if (coming_.valid()) return std::exchange(coming_, {}).wait();
  file_->bring_mapped(offset_, tensor_.nbytes());
}

void FileTensor::let_go() const noexcept {
  if (file_) file_->let_go_of_mapped(offset_, tensor_.nbytes());
}

}  // namespace bimetal::optim
