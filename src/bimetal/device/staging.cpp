#include "bimetal/device/staging.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"

namespace bimetal::device {

namespace {

// Long enough to leave the core to others, short beside any copy worth waiting for.
constexpr std::chrono::microseconds poll_interval{20};

c10::Event record(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

torch::Device with_index(const torch::Device& device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

c10::Stream stream_of_its_own(const torch::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  try {
    return guard.getNewStream(device);
  } catch (const c10::Error&) {
    return guard.getStream(device);
  }
}

torch::Tensor unset_host_buffer(std::int64_t count, torch::ScalarType dtype,
                                const torch::Device& device) {
  const auto options = torch::TensorOptions().dtype(dtype).device(torch::kCPU);
  if (!device.is_cpu()) {
    try {
      return torch::empty({count}, options.pinned_memory(true));
    } catch (const c10::Error& error) {
      static std::once_flag told;
      std::call_once(told, [&] {
        log(LogLevel::warning, "no page-locked memory for {} ({}); copies to the host will block",
            device.str(), error.what_without_backtrace());
      });
    }
  }
  return torch::empty({count}, options);
}

torch::Tensor host_buffer(std::int64_t count, torch::ScalarType dtype,
                          const torch::Device& device) {
  return unset_host_buffer(count, dtype, device).zero_();
}

bool CopyMark::passed() const {
  return !event_ || event_->query();
}

void CopyMark::wait(Deadline deadline) const {
  while (!passed()) {
    if (deadline.expired()) {
      throw Error(ErrorCode::Timeout,
                  fmt::format("copies between {} and the host have not ended in time; the device "
                              "may be hung or very busy",
                              event_->device().str()));
    }
    std::this_thread::sleep_for(poll_interval);
  }
}

CopyMark mark_current_stream(const torch::Device& device) {
  if (device.is_cpu()) return {};
  return CopyMark(record(c10::impl::VirtualGuardImpl(device.type()).getStream(device)));
}

HostStaging::HostStaging(const torch::Device& device) : device_(with_index(device)) {
  if (!device_.is_cpu()) to_host_ = stream_of_its_own(device_);
}

void HostStaging::to_host(const torch::Tensor& source, torch::Tensor host) {
  const torch::NoGradGuard no_grad;
  if (!to_host_) {
    host.copy_(source);
    return;
  }
  record(current_stream()).block(*to_host_);
  const c10::StreamGuard on_copy_stream(*to_host_);
  host.copy_(source, /*non_blocking=*/true);
}

void HostStaging::to_device(const torch::Tensor& host, torch::Tensor target) {
  const torch::NoGradGuard no_grad;
  target.copy_(host, /*non_blocking=*/to_host_.has_value());
}

void HostStaging::to_device_beside(const torch::Tensor& host, torch::Tensor target) {
  if (device_.is_cpu()) return to_device(host, std::move(target));
  if (!to_device_) to_device_ = stream_of_its_own(device_);
  const c10::StreamGuard on_copy_stream(*to_device_);
  to_device(host, std::move(target));
  beside_ = true;
}

void HostStaging::join() {
  if (std::exchange(beside_, false)) record(*to_device_).block(current_stream());
}

CopyMark HostStaging::mark_to_host() const {
  return to_host_ ? CopyMark(record(*to_host_)) : CopyMark();
}

CopyMark HostStaging::mark_all() const {
  if (to_host_) record(current_stream()).block(*to_host_);
  return mark_to_host();
}

CopyMark HostStaging::mark_to_device() const {
  return to_host_ ? CopyMark(record(current_stream())) : CopyMark();
}

c10::Stream HostStaging::current_stream() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

}  // namespace bimetal::device
