#include "bimetal/task/surroundings.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <mutex>

namespace bimetal::task {
namespace {

std::vector<torch::Device> cpu_and(const torch::Device& device) {
  std::vector<torch::Device> devices{torch::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  return devices;
}

torch::Tensor state_of(const torch::Device& device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_state(const torch::Device& device, const torch::Tensor& state) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

Surroundings::Surroundings(const torch::Device& device)
    : device_(device), autocast_keeps_casts_(at::autocast::is_autocast_cache_enabled()) {
  for (const auto& each : cpu_and(device)) {
    generators_.push_back({each, state_of(each)});
    if (!at::autocast::is_autocast_available(each.type())) continue;
    autocast_.push_back({each.type(), at::autocast::is_autocast_enabled(each.type()),
                         at::autocast::get_autocast_dtype(each.type())});
  }
}

void Surroundings::put_back() const {
  for (const auto& [device, state] : generators_) set_state(device, state);
  for (const auto& [device, enabled, dtype] : autocast_) {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
  }
  at::autocast::set_autocast_cache_enabled(autocast_keeps_casts_);
  if (std::ranges::any_of(autocast_, &Autocast::enabled)) at::autocast::clear_cache();
}

void Surroundings::restore_for(const std::function<void()>& work) const {
  const Surroundings now(device_);
  struct PutBack {
    const Surroundings& before;
    const Surroundings& during;
    ~PutBack() {
      if (std::ranges::any_of(during.autocast_, &Autocast::enabled)) at::autocast::clear_cache();
      before.put_back();
    }
  } const put_back_at_the_end{now, *this};
  put_back();
  const DrawScope scope(draws_);
  work();
}

}  // namespace bimetal::task
