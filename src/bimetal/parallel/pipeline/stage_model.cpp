#include "bimetal/parallel/pipeline/stage_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <span>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/activation_codec.h"
#include "bimetal/parallel/schedule/schedule.h"

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

namespace {

task::Model part_of(const task::Model& whole, std::size_t first, std::size_t last) {
  return {{whole.units.begin() + static_cast<std::ptrdiff_t>(first),
           whole.units.begin() + static_cast<std::ptrdiff_t>(last)}};
}

task::Model model_of_stage(const task::Model& whole, const std::vector<std::size_t>& begins,
                           int stages, int stage) {
  task::Model model;
  for (const auto& [first, last] : schedule::pieces_of(begins, whole.units.size(), stages, stage)) {
    const auto part = part_of(whole, first, last);
    model.units.insert(model.units.end(), part.units.begin(), part.units.end());
  }
  return model;
}

bool has(const std::vector<task::NamedTensor>& tensors, const torch::Tensor& tensor) {
  return std::ranges::any_of(
      tensors, [&](const task::NamedTensor& other) { return other.tensor.is_same(tensor); });
}

/// Under their names in the whole model.
void rename(std::vector<task::NamedTensor>& tensors, const std::vector<task::NamedTensor>& whole) {
  for (auto& [name, tensor] : tensors) {
    for (const auto& known : whole) {
      if (known.tensor.is_same(tensor)) name = known.name;
    }
  }
}

task::Model renamed(task::Model model) {
  const auto parameters = model.named_parameters(), buffers = model.named_buffers();
  for (auto& unit : model.units) {
    rename(unit.parameters, parameters);
    rename(unit.buffers, buffers);
  }
  return model;
}

std::vector<Tied> tied_between(const task::Model& whole, const std::vector<std::size_t>& begins,
                               int stages, int stage) {
  std::vector<std::vector<task::NamedTensor>> parameters;
  for (int s = 0; s < stages; ++s) {
    parameters.push_back(model_of_stage(whole, begins, stages, s).named_parameters());
  }
  std::vector<Tied> all;
  for (const auto& [name, tensor] : whole.named_parameters()) {
    if (!tensor.requires_grad()) continue;
    Tied tied;
    tied.name = name;
    for (int s = 0; s < stages; ++s) {
      if (has(parameters[static_cast<std::size_t>(s)], tensor)) tied.stages.push_back(s);
    }
    if (tied.stages.size() < 2) continue;
    if (std::ranges::find(tied.stages, stage) != tied.stages.end()) tied.tensor = tensor;
    all.push_back(std::move(tied));
  }
  return all;
}

}  // namespace

std::vector<std::size_t> begins_of(const std::vector<std::int64_t>& cuts, std::size_t pieces,
                                   std::size_t units, const std::string& table) {
  if (pieces > units) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a model of {} units cannot be cut into {} pieces: {}stages (times "
                            "{}chunks with \"interleaved\") must be at most {}",
                            units, pieces, table, table, units));
  }
  if (cuts.size() + 1 != pieces) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}cuts has {} units for {} pieces of the model: give the {} units "
                            "at which those but the first begin, or none",
                            table, cuts.size(), pieces, pieces - 1));
  }
  std::vector<std::size_t> begins = {0};
  for (const auto cut : cuts) {
    if (cut <= static_cast<std::int64_t>(begins.back()) ||
        cut >= static_cast<std::int64_t>(units)) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("{}cuts = [{}]: units at which a model of {} may be cut are 1 to "
                              "{}, each larger than the one before",
                              table, fmt::join(cuts, ", "), units, units - 1));
    }
    begins.push_back(static_cast<std::size_t>(cut));
  }
  return begins;
}

StageModel make_stage(const task::Model& model, const std::vector<std::size_t>& begins, int stages,
                      int stage) {
  const auto whole = renamed(model);
  StageModel made;
  for (const auto& [first, last] : schedule::pieces_of(begins, whole.units.size(), stages, stage)) {
    made.pieces.push_back(part_of(whole, first, last));
  }
  made.model = model_of_stage(whole, begins, stages, stage);
  made.tied = tied_between(whole, begins, stages, stage);
  return made;
}

StageModel with_units(StageModel stage, const task::Model& model) {
  std::size_t next = 0;
  for (auto& piece : stage.pieces) {
    for (auto& unit : piece.units) unit = model.units[next++];
  }
  stage.model = model;
  return stage;
}

std::string describe_units(const task::Model& whole, const std::vector<std::size_t>& begins,
                           int stages, int stage) {
  std::vector<std::string> names;
  for (const auto& unit : whole.units) names.push_back(unit.name);
  return units_text(names, schedule::pieces_of(begins, names.size(), stages, stage));
}

}  // namespace bimetal::parallel::pipeline
