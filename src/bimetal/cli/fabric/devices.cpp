#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/cli/command.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/device/device.h"
#include "bimetal/device/probe.h"

namespace bimetal::cli {
namespace {

constexpr const char* kDevicesExamples =
    "Speeds are medians of short runs, about a second for each device. --worker takes the names of "
    "the first column.\nWhat is measured, and how: docs/planning.md.";

struct MeasuredDevice {
  device::DeviceInfo info;
  device::DeviceSpeed speed;
};

std::vector<MeasuredDevice> measure_all() {
  device::apply_worker_limits({}, 1);  // all cores, as a single worker of this machine has them
  StatusLine status;
  std::vector<MeasuredDevice> devices;
  for (const auto& info : device::enumerate_devices()) {
    status.show(fmt::format("measuring {} ({}) …", info.device.str(), info.name));
    devices.push_back({info, device::probe_device(info.device)});
  }
  return devices;
}

std::string half_name(const device::DeviceSpeed& speed) {
  return speed.half == torch::kFloat16 ? "float16" : "bfloat16";
}

std::string gigaflops(const std::optional<double>& value) {
  return figure_text(value.value_or(0));
}

std::string gigabytes(const std::optional<double>& bytes_per_s) {
  return figure_text(bytes_per_s.value_or(0) * 1e-9);
}

TableRow row_of(const MeasuredDevice& device) {
  const auto& [info, speed] = device;
  return {info.device.str(),
          info.name,
          info.cores > 0 ? fmt::format("{}", info.cores) : "–",
          memory_text(info.memory_bytes),
          memory_text(info.memory_free_bytes),
          gigaflops(speed.matmul_float32_gflops),
          gigaflops(speed.matmul_half_gflops),
          gigaflops(speed.convolution_float32_gflops),
          gigaflops(speed.convolution_half_gflops),
          half_name(speed),
          gigabytes(speed.memory_bytes_per_s),
          gigabytes(speed.to_device_bytes_per_s),
          gigabytes(speed.from_device_bytes_per_s)};
}

void print_table(const std::vector<MeasuredDevice>& devices) {
  constexpr std::size_t kNames = 2;  // columns of text
  std::vector<TableRow> rows = {{"", "", "", "", "", "matmul", "matmul", "conv", "conv", "",
                                 "memory", "from host", "to host"},
                                {"", "", "", "", "free", "float32", "half", "float32", "half",
                                 "half", "copy", "copy", "copy"},
                                {"device", "name", "cores", "memory", "memory", "GFLOP/s",
                                 "GFLOP/s", "GFLOP/s", "GFLOP/s", "type", "GB/s", "GB/s", "GB/s"}};
  const std::size_t headings = rows.size();
  for (const auto& device : devices) rows.push_back(row_of(device));
  Terminal terminal;
  const auto lines = aligned(rows, kNames);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    terminal.print(i < headings ? terminal.coloured(Colour::bold, lines[i]) : lines[i]);
  }
}

nlohmann::json to_json(const MeasuredDevice& device) {
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
  };
  const auto& [info, speed] = device;
  return {{"device", info.device.str()},
          {"name", info.name},
          {"cores", info.cores > 0 ? nlohmann::json(info.cores) : nlohmann::json()},
          {"memory_bytes", info.memory_bytes},
          {"memory_free_bytes", info.memory_free_bytes},
          {"matmul_float32_gflops", number(speed.matmul_float32_gflops)},
          {"matmul_half_gflops", number(speed.matmul_half_gflops)},
          {"convolution_float32_gflops", number(speed.convolution_float32_gflops)},
          {"convolution_half_gflops", number(speed.convolution_half_gflops)},
          {"half_dtype", half_name(speed)},
          {"memory_bytes_per_s", number(speed.memory_bytes_per_s)},
          {"to_device_bytes_per_s", number(speed.to_device_bytes_per_s)},
          {"from_device_bytes_per_s", number(speed.from_device_bytes_per_s)}};
}

struct DevicesArguments {
  bool json = false;
};

int devices_command(const DevicesArguments& arguments) {
  const auto devices = measure_all();
  if (!arguments.json) {
    print_table(devices);
    return kSuccess;
  }
  auto list = nlohmann::json::array();
  for (const auto& device : devices) list.push_back(to_json(device));
  print_json({{"devices", list}});
  return kSuccess;
}

}  // namespace

void add_devices(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<DevicesArguments>();
  auto* command = app.add_subcommand("devices", "List this machine's devices and measure them");
  command->add_flag("--json", arguments->json, "Print JSON instead of a table");
  command->footer(kDevicesExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return devices_command(*arguments); }; });
}

}  // namespace bimetal::cli
