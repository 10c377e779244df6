#include "bimetal/parallel/tensor/cuts.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"

namespace bimetal::parallel::tensor {
namespace {

/// The name that a tensor is listed under in the whole model.
std::string first_name(const std::vector<task::NamedTensor>& distinct,
                       const torch::Tensor& tensor) {
  const auto found = std::ranges::find_if(
      distinct, [&](const task::NamedTensor& other) { return other.tensor.is_same(tensor); });
  return found->name;
}

[[noreturn]] void refuse_split(const std::string& unit, const std::string& what) {
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("unit '{}' says how to cut '{}', which {}", unit, what,
                          "does not fit the parameter of that name"));
}

bool same_cut(const task::TensorSplit& a, const task::TensorSplit& b) {
  return a.dim == b.dim && a.grain == b.grain && a.segments == b.segments;
}

}  // namespace

Cuts::Cuts(const task::Model& whole, std::vector<double> weights) : weights_(std::move(weights)) {
  const auto distinct = whole.named_parameters();
  for (const auto& unit : whole.units) {
    for (const auto& split : unit.splits) {
      const auto found =
          std::ranges::find(unit.parameters, split.parameter, &task::NamedTensor::name);
      if (found == unit.parameters.end()) refuse_split(unit.name, split.parameter);
      add({first_name(distinct, found->tensor), found->tensor}, unit.name, split);
    }
  }
  if (!cuts_.empty()) return;
  throw Error(
      ErrorCode::Unsupported,
      "this model's units do not say how their tensors may be cut (Unit::splits), so that "
      "tensor ranks cannot share them: GPT-2 and Llama do (model.name); take mesh.tensor = 1");
}

void Cuts::add(const task::NamedTensor& parameter, const std::string& unit,
               const task::TensorSplit& split) {
  const auto& [name, tensor] = parameter;
  const auto piece = split.grain * split.segments;
  if (split.dim < 0 || split.dim >= tensor.dim() || split.grain < 1 || split.segments < 1 ||
      tensor.size(split.dim) % piece != 0) {
    refuse_split(unit, split.parameter);
  }
  if (const auto known = cuts_.find(name); known != cuts_.end()) {
    if (!same_cut(known->second.split, split)) refuse_split(unit, split.parameter);
    return;
  }
  const auto pieces = tensor.size(split.dim) / piece;
  if (pieces < ranks()) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("'{}' has {} pieces that stay whole (of a fused tensor in each segment; heads "
                    "that share keys and values are one), too few for {} tensor ranks: take "
                    "mesh.tensor = {} or less",
                    split.parameter, pieces, ranks(), pieces));
  }
  auto counts = balance::whole_parts(pieces, weights_);
  for (auto& count : counts) count *= split.grain;
  cuts_[name] = {split, tensor.sizes().vec(), std::move(counts)};
}

PartPlaces Cuts::places(const std::string& parameter, int rank) const {
  const auto& [split, sizes, counts] = cuts_.at(parameter);
  const auto segment = sizes[static_cast<std::size_t>(split.dim)] / split.segments;
  const auto first = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  PartPlaces part{.dim = split.dim, .places = {}};
  for (std::int64_t i = 0; i < split.segments; ++i) {
    part.places.push_back({i * segment + first, counts[static_cast<std::size_t>(rank)]});
  }
  return part;
}

const std::vector<std::int64_t>& Cuts::sizes(const std::string& parameter) const {
  return cuts_.at(parameter).sizes;
}

std::vector<std::int64_t> Cuts::part_sizes(const std::string& parameter, int rank) const {
  const auto& cut = cuts_.at(parameter);
  auto sizes = cut.sizes;
  sizes[static_cast<std::size_t>(cut.split.dim)] =
      cut.counts[static_cast<std::size_t>(rank)] * cut.split.segments;
  return sizes;
}

torch::Tensor Cuts::part(const std::string& parameter, const torch::Tensor& whole, int rank) const {
  if (!has(parameter)) return whole;
  const auto [dim, places] = this->places(parameter, rank);
  std::vector<torch::Tensor> parts;
  for (const auto& [first, count] : places) parts.push_back(whole.narrow(dim, first, count));
  return torch::cat(parts, dim);
}

void Cuts::put(const std::string& parameter, const torch::Tensor& part, int rank,
               const torch::Tensor& whole) const {
  const auto [dim, places] = this->places(parameter, rank);
  std::int64_t here = 0;
  for (const auto& [first, count] : places) {
    whole.narrow(dim, first, count).copy_(part.narrow(dim, here, count));
    here += count;
  }
}

}  // namespace bimetal::parallel::tensor
