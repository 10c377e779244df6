// AdamW on the CPU, of so many float32 elements in one flat shard: `adamw [--elements N] [--threads
// T]
// [--rounds R] [--folder DIR]`. Prints seconds and GB/s (bytes read and written) of a plain copy of
// as many bytes, of libtorch's AdamW, of its fused kernel and of the merged update, then of
// unscaling, clipping, stepping and copying to bfloat16 one after the other beside all of it
// merged. With --folder: of a step whose moments are in a file there, beside reading and writing as
// many bytes of one. Every figure is the median of R rounds, in which all take turns.

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/optim/cpu_adam.h"
#include "bimetal/optim/fused.h"
#include "bimetal/optim/offload/state_file.h"

namespace {

using namespace bimetal;

/// Bytes that AdamW must move for an element: four read, three written; and two of a bfloat16.
constexpr double kStepBytes = 28, kMergedBytes = 30;

struct Measured {
  std::string name;
  double bytes;
  std::function<void()> run;
  std::vector<double> seconds = {};

  double median() {
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2];
  }
};

/// Copies half of `bytes`, so that as many are read and written together.
std::function<void()> plain_copy(std::int64_t bytes) {
  const auto from = torch::zeros({bytes / 2}, torch::kUInt8), to = torch::zeros_like(from);
  return [from, to] {
    auto* const target = static_cast<std::byte*>(to.data_ptr());
    const auto* const source = static_cast<const std::byte*>(from.data_ptr());
    at::parallel_for(0, from.numel(), 1 << 20, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(target + begin, source + begin, static_cast<std::size_t>(end - begin));
    });
  };
}

template <typename Made>
std::function<void()> stepping(std::int64_t elements, const std::string& folder = {}) {
  auto parameter = torch::randn({elements});
  parameter.mutable_grad() = torch::randn({elements});
  auto optimizer = std::make_shared<Made>(std::vector<torch::Tensor>{parameter},
                                          torch::optim::AdamWOptions(1e-4).weight_decay(0.1));
  if constexpr (requires { optimizer->keep_on_disk(folder); }) {
    if (!folder.empty()) optimizer->keep_on_disk(folder);
  }
  return [optimizer] { optimizer->step(); };
}

optim::AdamTensors tensors_of(std::int64_t elements) {
  return {torch::randn({elements}), torch::randn({elements}), torch::zeros({elements}),
          torch::zeros({elements}), torch::empty({elements}, torch::kBFloat16)};
}

std::function<void()> merged(std::int64_t elements) {
  return [tensors = tensors_of(elements)] {
    optim::adam_update(tensors, {.weight_decay = 0.1, .step = 10, .gradient_factor = 0.999});
  };
}

std::function<void()> one_after_the_other(std::int64_t elements) {
  auto tensors = tensors_of(elements);
  const auto step = torch::full({}, 10.0f);
  return [tensors, step] {
    auto gradient = tensors.gradient;
    gradient.mul_(0.9995);  // unscaling
    gradient.mul_(0.9995);  // clipping
    at::_fused_adamw_({tensors.parameter}, {gradient}, {tensors.mean}, {tensors.square}, {}, {step},
                      1e-3, 0.9, 0.999, 0.1, 1e-8, false, false);
    torch::Tensor(tensors.bfloat16).copy_(tensors.parameter);
  };
}

/// Reads and writes all of a file, one after the other.
std::function<void()> file_copy(std::int64_t bytes, const std::string& folder) {
  auto file = std::make_shared<optim::StateFile>(folder, static_cast<std::uint64_t>(bytes));
  const auto chunk = torch::empty({8 << 20}, torch::kUInt8);
  return [file, chunk, bytes] {
    for (std::int64_t offset = 0; offset < bytes; offset += chunk.numel()) {
      const std::span<std::byte> part(
          static_cast<std::byte*>(chunk.data_ptr()),
          static_cast<std::size_t>(std::min(chunk.numel(), bytes - offset)));
      file->read(part, static_cast<std::uint64_t>(offset));
      file->write(part, static_cast<std::uint64_t>(offset));
    }
  };
}

void measure(std::vector<Measured> all, int rounds) {
  const torch::NoGradGuard no_grad;
  for (auto& one : all) one.run();  // memory is fetched, states are made
  for (int round = 0; round < rounds; ++round) {
    for (auto& one : all) {
      const Stopwatch watch;
      one.run();
      one.seconds.push_back(watch.seconds());
    }
  }
  for (auto& one : all) {
    fmt::print("{:<44}{:8.4f} s{:8.2f} GB/s\n", one.name, one.median(),
               one.bytes / one.median() / 1e9);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t elements = 50'000'000;
  int threads = 1, rounds = 9;
  std::string folder;
  CLI::App app("AdamW on the CPU beside a copy");
  app.add_option("--elements", elements);
  app.add_option("--threads", threads);
  app.add_option("--rounds", rounds);
  app.add_option("--folder", folder);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(threads);
  const auto count = static_cast<double>(elements);
  fmt::print("{} elements, {} threads\n", elements, threads);
  measure({{"copy of as many bytes", kStepBytes * count, plain_copy(28 * elements)},
           {"torch::optim::AdamW", kStepBytes * count, stepping<torch::optim::AdamW>(elements)},
           {"libtorch's fused kernel", kStepBytes * count, stepping<optim::FusedAdamW>(elements)},
           {"CpuAdamW", kStepBytes * count, stepping<optim::CpuAdamW>(elements)}},
          rounds);
  measure({{"copy of as many bytes", kMergedBytes * count, plain_copy(30 * elements)},
           {"unscale, clip, step, copy to bfloat16", kMergedBytes * count,
            one_after_the_other(elements)},
           {"the same merged", kMergedBytes * count, merged(elements)}},
          rounds);
  if (folder.empty()) return 0;
  // For a step with the moments in a file, the file's part: both are read and written.
  measure(
      {{"reading and writing as many bytes of a file", 16 * count, file_copy(8 * elements, folder)},
       {"CpuAdamW, moments in a file", 16 * count, stepping<optim::CpuAdamW>(elements, folder)}},
      rounds);
}
