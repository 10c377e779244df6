#include "bimetal/parallel/shard/flat_parameters.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/device/device.h"

namespace bimetal::parallel::shard {
namespace {

/// Looking at the memory is an error from here on.
template <typename Storage>
void refuse_looks(Storage& storage, const std::string& unit) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(fmt::format(
        "a parameter in shards{} is used while its values are not there: at level 3 they are only "
        "within a call of the whole model, where its unit runs, and where they are gathered",
        unit.empty() ? "" : " of unit " + unit));
  }
}

template <typename Storage>
void allow_looks(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.clear_data_ptr_access_error_msg_();
  }
}

torch::Tensor view_of(const torch::Tensor& whole, const FlatPlan::Slot& slot,
                      const torch::Tensor& parameter) {
  return whole.narrow(0, slot.offset, slot.count).view(parameter.sizes());
}

std::shared_ptr<const optim::StateFile> keep_on_disk(std::vector<FlatParameters>& flats,
                                                     const std::filesystem::path& folder) {
  constexpr auto kStride = optim::kFileTensorAlignment;
  std::vector<std::uint64_t> places;
  std::uint64_t end = 0;
  for (const auto& flat : flats) {
    places.push_back(end);
    end += (flat.own().nbytes() + kStride - 1) / kStride * kStride;
  }
  const auto file = std::make_shared<optim::StateFile>(folder, end);
  for (std::size_t i = 0; i < flats.size(); ++i) {
    const auto own = flats[i].own();
    flats[i].set_apart_in({file, places[i], own.numel(), own.scalar_type()});
  }
  return file;
}

}  // namespace

void hollow_out(const torch::Tensor& tensor) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, tensor.device()));
}

void close_off(const torch::Tensor& tensor, const std::string& unit) {
  hollow_out(tensor);
  refuse_looks(*tensor.storage().unsafeGetStorageImpl(), unit);
}

void give_memory(const torch::Tensor& tensor) {
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  allow_looks(*storage);
  const c10::OptionalDeviceGuard guard(tensor.device());  // allocators serve the current device
  storage->set_data_ptr(c10::GetAllocator(tensor.device().type())->allocate(storage->nbytes()));
}

bool is_hollow(const torch::Tensor& tensor) {
  // Without the look that may be refused.
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  return tensor.numel() > 0 && storage->_mutable_data_ptr_no_checks().get() == nullptr;
}

FlatParameters::FlatParameters(const FlatPlan& plan, const std::vector<torch::Tensor>& parameters,
                               int rank, bool hollow, torch::Tensor memory)
    : plan_(plan), parameters_(parameters), begin_(plan.begin_of(rank)) {
  const torch::NoGradGuard no_grad;
  const auto options = torch::dtype(plan.dtype).device(parameters.front().device());
  const auto count = static_cast<std::int64_t>(plan.counts[static_cast<std::size_t>(rank)]);
  const bool halved = plan.gathered != plan.dtype;
  whole_ = memory.defined() ? std::move(memory)
                            : torch::empty({plan.count}, options.dtype(plan.gathered));
  own_ = halved ? torch::empty({count}, options) : whole_.narrow(0, begin_, count);
  if (hollow) drop_memory();
  for (std::size_t i = 0; i < parameters.size() && !hollow; ++i) {
    view_of(whole_, plan.slots[i], parameters[i]).copy_(parameters[i]);
    const auto kept = kept_of(plan, plan.slots[i], rank);
    if (!halved || kept.count == 0) continue;
    own_.narrow(0, plan.slots[i].offset + kept.offset - begin_, kept.count)
        .copy_(parameters[i].reshape(-1).narrow(0, kept.offset, kept.count));
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    torch::Tensor parameter = parameters[i];
    parameter.set_data(view_of(whole_, plan.slots[i], parameter).variable_data());
  }
}

// Below the parameters, as set_data would: that would also drop what autograd accumulates their
// gradients with, and its hooks, though none of them runs while the type is another.
void FlatParameters::set_wide(bool wide) {
  const auto type = wide ? plan_.dtype : plan_.gathered;
  if (whole_.scalar_type() == type || held_) return;
  const torch::NoGradGuard no_grad;
  whole_ = torch::empty({plan_.count}, whole_.options().dtype(type));
  held_ = true;
  drop_memory();
  show(whole_);
}

void FlatParameters::show(const torch::Tensor& flat) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto view = view_of(flat, plan_.slots[i], parameters_[i]).variable_data();
    parameters_[i].unsafeGetTensorImpl()->shallow_copy_from(view.getIntrusivePtr());
  }
}

torch::Tensor FlatParameters::own_in_whole() const {
  return whole_.narrow(0, begin_, own_.numel());
}

bool FlatParameters::is_copied_to_bfloat16() const {
  return whole_.is_cpu() && own_.is_cpu() && whole_.scalar_type() == torch::kBFloat16 &&
         own_.scalar_type() != torch::kBFloat16;
}

void FlatParameters::set_apart() {
  own_ = held_ ? own_.clone() : torch::empty(own_.sizes(), own_.options());
}

void FlatParameters::set_apart_on_host() {
  const auto apart = torch::empty(own_.sizes(), own_.options().device(torch::kCPU));
  own_ = held_ ? torch::Tensor(apart).copy_(own_) : apart;
}

void FlatParameters::set_apart_in(optim::FileTensor memory) {
  const torch::NoGradGuard no_grad;
  in_file_ = std::move(memory);
  const auto apart = in_file_.tensor();
  own_ = held_ ? torch::Tensor(apart).copy_(own_) : apart;
  in_file_.let_go();
}

void FlatParameters::take_own_from_whole() {
  const torch::NoGradGuard no_grad;
  if (own_.scalar_type() != whole_.scalar_type()) return;
  const auto part = own_in_whole();
  if (!own_.is_alias_of(part)) own_.copy_(part);
}

// Only the pointer: the storage is what parameters, and what autograd has saved of them, share.
void FlatParameters::take_memory() {
  if (held_) return;
  give_memory(whole_);
  held_ = true;
}

torch::Tensor FlatParameters::take_memory_to_come() {
  if (held_) return to_come_.defined() ? to_come_ : whole_;
  take_memory();
  auto* const storage = whole_.storage().unsafeGetStorageImpl();
  auto memory = storage->set_data_ptr(at::DataPtr(nullptr, whole_.device()));
  refuse_looks(*storage, plan_.unit_name);
  const c10::Storage apart(c10::Storage::use_byte_size_t(), storage->nbytes(), std::move(memory));
  to_come_ = torch::empty({0}, whole_.options()).set_(apart, 0, {plan_.count});
  return to_come_;
}

void FlatParameters::memory_has_come() {
  if (!to_come_.defined()) return;
  auto* const storage = whole_.storage().unsafeGetStorageImpl();
  allow_looks(*storage);
  storage->set_data_ptr(to_come_.storage().unsafeGetStorageImpl()->set_data_ptr(
      at::DataPtr(nullptr, whole_.device())));
  to_come_ = torch::Tensor();
}

void FlatParameters::drop_memory() {
  if (!held_) return;
  to_come_ = torch::Tensor();  // of a pass that has failed
  if (kept_in_whole_) keep_by_itself();
  close_off(whole_, plan_.unit_name);
  held_ = false;
}

// Likewise only pointers: an optimizer's pieces are views of the kept part. Only drop_memory()
// makes sure that the whole outlives the parts in it.
void FlatParameters::keep_in_whole() {
  const bool alike = own_.scalar_type() == whole_.scalar_type() && own_.device() == whole_.device();
  if (!held_ || !alike || own_.numel() == 0 || own_on_disk()) return;
  const auto part = own_in_whole();
  own_.storage().unsafeGetStorageImpl()->set_data_ptr(
      at::DataPtr(part.mutable_data_ptr(), own_.device()));
  kept_in_whole_ = true;
}

void FlatParameters::keep_by_itself() {
  const torch::NoGradGuard no_grad;
  const auto apart = own_.clone();
  own_.storage().unsafeGetStorageImpl()->set_data_ptr(
      apart.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, own_.device())));
  kept_in_whole_ = false;
}

std::shared_ptr<const optim::StateFile> keep_apart(std::vector<FlatParameters>& flats, Kept kept,
                                                   const std::filesystem::path& folder) {
  if (kept == Kept::OnDisk) return keep_on_disk(flats, folder);
  for (auto& flat : flats) kept == Kept::OnHost ? flat.set_apart_on_host() : flat.set_apart();
  return nullptr;
}

namespace {

std::uint64_t free_memory(const torch::Device& device) {
  for (const auto& info : device::enumerate_devices()) {
    if (info.device.type() == device.type() && info.device.index() == device.index()) {
      return info.memory_free_bytes;
    }
  }
  return 0;
}

}  // namespace

std::vector<double> weights_by_memory(comm::Group group, const torch::Device& device,
                                      Deadline deadline, bool copies) {
  const std::vector<std::uint64_t> mine = {free_memory(device)};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  const auto bytes = [](const auto& numbers) {
    return comm::ConstBuffer{numbers.data(), numbers.size() * sizeof(std::uint64_t),
                             comm::DType::uint8};
  };
  group
      .all_gather(bytes(mine), {all.data(), all.size() * sizeof(std::uint64_t), comm::DType::uint8},
                  deadline)
      .wait();
  if (std::ranges::find(all, std::uint64_t{0}) != all.end()) {
    return std::vector<double>(all.size(), 1.0);
  }
  const std::vector<double> rooms(all.begin(), all.end());
  return copies ? balance::ring_parts(rooms) : rooms;
}

}  // namespace bimetal::parallel::shard
