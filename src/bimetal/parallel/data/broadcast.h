#pragma once
// Sends one rank's tensors to all ranks.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <span>

#include "bimetal/comm/group.h"
#include "bimetal/task/task.h"

namespace bimetal::parallel {

/// Copies the values of rank `root`'s tensors into those of all other ranks, bit by bit. Shapes and
/// types must agree; devices and strides may differ. Tensors are packed into messages of about
/// `message_bytes`; nothing is sent when they have no elements. Collective.
void broadcast_tensors(std::span<const torch::Tensor> tensors, int root, comm::Group group,
                       std::size_t message_bytes, std::chrono::milliseconds timeout);

/// The same of a model's parameters and buffers.
void broadcast_model(const task::ModelState& model, int root, const comm::Group& group,
                     std::size_t message_bytes, std::chrono::milliseconds timeout);

}  // namespace bimetal::parallel
