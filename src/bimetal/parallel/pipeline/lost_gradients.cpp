#include "bimetal/parallel/pipeline/lost_gradients.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <span>
#include <utility>

#include "bimetal/comm/compress/error_feedback.h"
#include "bimetal/parallel/pipeline/activation_codec.h"

namespace bimetal::parallel::pipeline {
namespace {

std::span<float> first_floats(const torch::Tensor& tensor, std::int64_t count) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(count)};
}

/// `lost` with room for as many samples as `floats` has.
torch::Tensor made_to_fit(const torch::Tensor& lost, const torch::Tensor& floats) {
  const bool alike = lost.defined() && lost.sizes().slice(1) == floats.sizes().slice(1);
  if (alike && lost.size(0) >= floats.size(0)) return lost;
  auto larger = torch::zeros(floats.sizes(), torch::kFloat32);
  if (alike) larger.narrow(0, 0, lost.size(0)).copy_(lost);
  return larger;
}

}  // namespace

torch::Tensor LostGradients::encode(comm::Scheme scheme, const Place& place, torch::Tensor floats) {
  if (floats.dim() == 0) floats = floats.view({1});
  auto& lost = lost_[place];
  lost = made_to_fit(lost, floats);
  const auto wanted = first_floats(floats, floats.numel());
  const auto kept = first_floats(lost, floats.numel());
  comm::add(wanted, kept);
  auto code = encode_tensor(scheme, floats);
  const auto sent = decode_tensor(scheme, code, floats);
  comm::remember_lost(wanted, first_floats(sent, sent.numel()), 1.0f, kept);
  return code;
}

}  // namespace bimetal::parallel::pipeline
