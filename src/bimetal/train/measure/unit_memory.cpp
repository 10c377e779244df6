#include "bimetal/train/measure/unit_memory.h"

#include <c10/core/Allocator.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <map>
#include <utility>

#include "bimetal/parallel/shard/flat_parameters.h"

namespace bimetal::train {

std::optional<UnitMemory> UnitMemory::make(const task::Task& task, const torch::Device& device,
                                           torch::Dtype dtype) {
  auto model = task.make_model_by_units([&](const task::Unit& unit) {
    task::Model{{unit}}.to(device, dtype);
    for (const auto& [name, tensor] : unit.parameters) parallel::shard::hollow_out(tensor);
  });
  if (!model) return std::nullopt;
  return UnitMemory(std::move(*model));
}

UnitMemory::UnitMemory(task::Model model) : model_(std::move(model)) {
  std::map<const void*, std::size_t> known;
  for (const auto& unit : model_.units) {
    auto& own = of_unit_.emplace_back();
    for (const auto& [name, tensor] : unit.parameters) {
      const auto [place, fresh] = known.emplace(tensor.unsafeGetTensorImpl(), parts_.size());
      if (fresh) {
        parts_.push_back({tensor});
      } else {
        parts_[place->second].shared = true;
      }
      own.push_back(place->second);
    }
  }
}

void UnitMemory::hold(std::size_t unit) {
  const torch::NoGradGuard no_grad;
  for (const auto index : of_unit_[unit]) {
    auto& part = parts_[index];
    if (part.there) continue;
    auto* const storage = part.tensor.storage().unsafeGetStorageImpl();
    storage->set_data_ptr(
        c10::GetAllocator(part.tensor.device().type())->allocate(storage->nbytes()));
    part.tensor.variable_data().zero_();  // without its count of changes: autograd has saved it
    part.there = true;
    held_ += static_cast<std::int64_t>(storage->nbytes());
  }
}

void UnitMemory::drop(Part& part) {
  if (!part.there) return;
  parallel::shard::hollow_out(part.tensor);
  part.there = false;
  held_ -= static_cast<std::int64_t>(part.tensor.storage().unsafeGetStorageImpl()->nbytes());
}

void UnitMemory::drop(std::size_t unit) {
  for (const auto index : of_unit_[unit]) {
    if (!parts_[index].shared) drop(parts_[index]);
  }
}

void UnitMemory::drop_all() {
  for (auto& part : parts_) drop(part);
}

}  // namespace bimetal::train
