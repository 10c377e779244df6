#pragma once
// The same model on all ranks: verified before any gradient travels, one rank's tensors sent to
// all, and running statistics of batch normalisation over all ranks' samples.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>

#include "bimetal/comm/group.h"
#include "bimetal/device/stream_timer.h"
#include "bimetal/task/batch_norm.h"
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

/// Compares count, order, names, shapes, types and requires_grad of parameters and buffers over all
/// ranks. Throws the same Error(CallMismatch) on every rank when they differ: it names the lowest
/// rank that differs from rank 0, and the first difference. The group stays usable. Collective;
/// costs one exchange of 16 bytes when all agree. Devices may differ.
void check_same_on_all_ranks(const task::ModelState& state, comm::Group group,
                             std::chrono::milliseconds timeout);

/// The batch statistics of this rank's samples of a step, on their way to the host: all layers in
/// one copy. Nothing where there are none, or no other ranks.
std::optional<device::LateNumbers> numbers_of(std::span<const task::BatchStatistics> statistics,
                                              const comm::Group& group);

/// Sums up the batch statistics of the ranks' samples of a step, in double precision, so that all
/// ranks go on with the same running statistics once each has merged it (task::merge). `here`: this
/// rank's, by numbers_of(). Collective; nothing is sent where there are none. Errors: the fabric's.
void sum_over_ranks(std::span<const task::BatchStatistics> statistics,
                    const std::optional<device::LateNumbers>& here, comm::Group group,
                    std::chrono::milliseconds timeout);

/// Forgets statistics of a step that does not count.
void discard(std::span<const task::BatchStatistics> statistics);

}  // namespace bimetal::parallel
