#include "bimetal/parallel/data/broadcast.h"

#include <torch/csrc/api/include/torch/utils.h>

#include <cstring>
#include <vector>

#include "bimetal/base/deadline.h"

namespace bimetal::parallel {

namespace {

// Every element type is aligned when it starts at a multiple of this.
constexpr std::size_t alignment = 16;

std::size_t padded_bytes(const torch::Tensor& tensor) {
  return (tensor.nbytes() + alignment - 1) / alignment * alignment;
}

// The number of leading tensors that make up the next message: at least one.
std::size_t message_length(std::span<const torch::Tensor> tensors, std::size_t message_bytes) {
  std::size_t count = 0;
  std::size_t bytes = 0;
  do {
    bytes += padded_bytes(tensors[count++]);
  } while (count < tensors.size() && bytes < message_bytes);
  return count;
}

void pack(std::span<const torch::Tensor> tensors, std::byte* message) {
  for (const auto& tensor : tensors) {
    const auto values = tensor.detach().to(torch::kCPU).contiguous();
    if (values.nbytes() > 0) std::memcpy(message, values.const_data_ptr(), values.nbytes());
    message += padded_bytes(tensor);
  }
}

void unpack(std::byte* message, std::span<const torch::Tensor> tensors) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor tensor : tensors) {
    tensor.copy_(torch::from_blob(message, tensor.sizes(), tensor.scalar_type()));
    message += padded_bytes(tensor);
  }
}

}  // namespace

void broadcast_tensors(std::span<const torch::Tensor> tensors, int root, comm::Group group,
                       std::size_t message_bytes, std::chrono::milliseconds timeout) {
  while (!tensors.empty()) {
    const auto batch = tensors.first(message_length(tensors, message_bytes));
    tensors = tensors.subspan(batch.size());
    std::size_t bytes = 0;
    for (const auto& tensor : batch) bytes += padded_bytes(tensor);
    if (bytes == 0) continue;

    std::vector<std::byte> message(bytes);
    if (group.rank() == root) pack(batch, message.data());
    group.broadcast({message.data(), bytes, comm::DType::uint8}, root, Deadline::after(timeout))
        .wait();
    if (group.rank() != root) unpack(message.data(), batch);
  }
}

void broadcast_model(const task::ModelState& model, int root, const comm::Group& group,
                     std::size_t message_bytes, std::chrono::milliseconds timeout) {
  for (const auto* tensors : {&model.parameters, &model.buffers}) {
    broadcast_tensors(task::tensors_of(*tensors), root, group, message_bytes, timeout);
  }
}

}  // namespace bimetal::parallel
