#include "bimetal/train/measure/rank_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "bimetal/comm/exchange.h"
#include "bimetal/device/device.h"
#include "bimetal/device/graph.h"
#include "bimetal/device/probe.h"

namespace bimetal::train {
namespace {

constexpr std::chrono::milliseconds kDeviceBudget{500};

}  // namespace

RankDevice named_device(const torch::Device& device, const TrainerOptions& options) {
  RankDevice result;
  result.host = options.host_name;
  result.worker = job::to_string(options.worker);
  result.device = device.str();
  result.has_graphs = device::has_graphs(device);
  if (const auto copies = device::probe_copies(device)) {
    result.copies = {.latency_s = copies->latency_s,
                     .out_s_per_byte = 1 / copies->from_device_bytes_per_s,
                     .in_s_per_byte = 1 / copies->to_device_bytes_per_s};
  }
  return result;
}

RankDevice measured_device(const torch::Device& device, const TrainerOptions& options) {
  auto result = named_device(device, options);
  for (const auto& info : device::enumerate_devices()) {
    if (info.device != device) continue;
    result.name = info.name;
    result.memory_free_bytes = info.memory_free_bytes;
  }
  const auto speed = device::probe_device(device, kDeviceBudget);
  result.matmul_float32_gflops = speed.matmul_float32_gflops.value_or(0);
  result.matmul_half_gflops = speed.matmul_half_gflops.value_or(0);
  result.convolution_float32_gflops = speed.convolution_float32_gflops.value_or(0);
  result.memory_bytes_per_s = speed.memory_bytes_per_s.value_or(0);
  return result;
}

std::vector<RankDevice> gather_devices(comm::Group group, RankDevice mine, Deadline deadline) {
  return comm::all_gather_fields(
      std::move(group), std::move(mine), deadline, [](auto& wire, RankDevice& device) {
        wire(device.host, device.worker, device.device, device.name, device.memory_free_bytes,
             device.matmul_float32_gflops, device.matmul_half_gflops, device.has_graphs,
             device.may_be_lower, device.convolution_float32_gflops, device.memory_bytes_per_s,
             device.copies.latency_s, device.copies.out_s_per_byte, device.copies.in_s_per_byte);
      });
}

std::string short_name(const RankDevice& device, const std::vector<RankDevice>& all) {
  const auto& name = device.worker.starts_with("auto") ? device.device : device.worker;
  const bool one_host =
      std::ranges::all_of(all, [&](const RankDevice& other) { return other.host == device.host; });
  return one_host ? name : fmt::format("{} on {}", name, device.host);
}

}  // namespace bimetal::train
