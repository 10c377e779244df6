#include "bimetal/train/pipeline/stage_states.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/shared_checkpoint.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::train {
namespace {

using checkpoint::TensorMap;

constexpr std::uint64_t kLengthTag = 1, kBytesTag = 2;

// Values and what has been learnt about them travel in one file's bytes.
const std::string kValue = "value:", kLearnt = "learnt:";

comm::Buffer as_bytes(std::span<std::byte> bytes) {
  return {bytes.data(), bytes.size(), comm::DType::uint8};
}

void send_to_first(comm::Group pipeline, comm::Bytes bytes, Deadline deadline) {
  std::vector<std::int64_t> length = {static_cast<std::int64_t>(bytes.size())};
  pipeline.send(comm::buffer(std::span(std::as_const(length))), 0, kLengthTag, deadline).wait();
  pipeline.send(as_bytes(bytes), 0, kBytesTag, deadline).wait();
}

comm::Bytes receive_from(comm::Group pipeline, int stage, Deadline deadline) {
  std::vector<std::int64_t> length = {0};
  pipeline.recv(comm::buffer(std::span(length)), stage, kLengthTag, deadline).wait();
  comm::Bytes bytes(static_cast<std::size_t>(length.front()));
  pipeline.recv(as_bytes(bytes), stage, kBytesTag, deadline).wait();
  return bytes;
}

TensorMap own_state(const task::ModelState& stage, const TensorMap& learnt) {
  TensorMap own;
  for (const auto* tensors : {&stage.parameters, &stage.buffers}) {
    for (const auto& [name, tensor] : *tensors) own[kValue + name] = tensor.detach();
  }
  for (const auto& [name, tensor] : learnt) own[kLearnt + name] = tensor;
  return own;
}

}  // namespace

ModelOutline::ModelOutline(const task::ModelState& whole) : other_names(whole.other_names) {
  for (const auto& [name, tensor] : whole.parameters) {
    parameters.push_back({name, tensor.requires_grad()});
  }
  for (const auto& [name, tensor] : whole.buffers) buffers.push_back({name, false});
}

void take_stage_states(const torch::optim::Optimizer& whole, const task::ModelState& model,
                       const task::ModelState& stage, torch::optim::Optimizer& of_stage) {
  TensorMap part;
  for (const auto& [name, tensor] : checkpoint::optimizer_tensors(whole, model)) {
    const auto parameter = name.substr(0, name.rfind('.'));
    const bool ours = std::ranges::find(stage.parameters, parameter, &task::NamedTensor::name) !=
                      stage.parameters.end();
    if (ours) part[name] = tensor;
  }
  of_stage.state() =
      checkpoint::optimizer_states(part, of_stage, stage, "the checkpoint's part for this stage");
}

WholeState gather_stage_states(const parallel::Mesh& mesh, const ModelOutline& outline,
                               const task::ModelState& stage, const TensorMap& learnt) {
  const auto deadline = Deadline::after(checkpoint::kFileTimeout);
  const auto& place = mesh.place();
  WholeState whole;
  if (place.replica != 0 || place.tensor != 0) return whole;
  auto all = own_state(stage, learnt);
  if (place.stage != 0) {
    send_to_first(mesh.pipeline(), checkpoint::encode_safetensors(all), deadline);
    return whole;
  }
  for (int other = 1; other < mesh.shape().stages; ++other) {
    // Tied tensors, which several have, are the same.
    all.merge(checkpoint::decode_safetensors(receive_from(mesh.pipeline(), other, deadline),
                                             mesh.name_of_stage(other)));
  }
  for (const auto& [name, trained] : outline.parameters) {
    whole.model.parameters.push_back({name, all.at(kValue + name).set_requires_grad(trained)});
  }
  for (const auto& [name, trained] : outline.buffers) {
    whole.model.buffers.push_back({name, all.at(kValue + name)});
  }
  whole.model.other_names = outline.other_names;
  for (const auto& [name, tensor] : all) {
    if (name.starts_with(kLearnt)) whole.learnt[name.substr(kLearnt.size())] = tensor;
  }
  return whole;
}

}  // namespace bimetal::train
