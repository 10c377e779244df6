#include "bimetal/train/shared_checkpoint.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/train/exchange.h"

namespace bimetal::train {
namespace {

Bytes encode_state(const TrainingState& state) {
  WireWriter writer;
  writer.i64(state.step);
  writer.i64(state.position.epoch);
  writer.i64(state.position.offset);
  writer.u64(state.seed);
  writer.i64(state.global_batch);
  writer.u32(static_cast<std::uint32_t>(state.error_feedback.size()));
  for (const auto& [name, values] : state.error_feedback) {
    writer.string(name);
    writer.u64(values.size());
    writer.raw(std::as_bytes(std::span(values)));
  }
  writer.raw(std::as_bytes(std::span(state.torch_rng)));
  return std::move(writer).take();
}

TrainingState decode_state(const Bytes& bytes) {
  WireReader reader(bytes);
  TrainingState state;
  state.step = reader.i64();
  state.position.epoch = reader.i64();
  state.position.offset = reader.i64();
  state.seed = reader.u64();
  state.global_batch = reader.i64();
  state.error_feedback.resize(reader.u32());
  for (auto& [name, values] : state.error_feedback) {
    name = reader.string();
    const auto bytes = reader.raw(reader.u64() * sizeof(float));
    values.resize(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  const auto rng = reader.raw(reader.remaining());
  state.torch_rng.resize(rng.size());
  std::memcpy(state.torch_rng.data(), rng.data(), rng.size());
  return state;
}

// libtorch's own archive: it never leaves the memory of this job's processes.
Bytes pack(const torch::optim::Optimizer& optimizer) {
  std::ostringstream stream;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(stream);
  const auto text = std::move(stream).str();
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void unpack(const Bytes& bytes, torch::optim::Optimizer& optimizer, const torch::Device& device) {
  torch::serialize::InputArchive archive;
  archive.load_from(reinterpret_cast<const char*>(bytes.data()), bytes.size(), device);
  optimizer.load(archive);
}

bool all_finite(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  return std::ranges::all_of(module.parameters(), [](const torch::Tensor& parameter) {
    // A sum is finite unless an element is not (or it overflows, which is no better).
    return std::isfinite(parameter.sum().item<double>());
  });
}

}  // namespace

std::filesystem::path save_shared_checkpoint(comm::Group group, const CheckpointConfig& config,
                                             const torch::nn::Module& module,
                                             const torch::optim::Optimizer& optimizer,
                                             const TrainingState& state) {
  std::string path;
  if (group.rank() == 0) {
    path = save_checkpoint(config.dir, module, optimizer, state, config.keep).string();
  }
  const auto characters = std::as_bytes(std::span(path));
  const auto agreed = broadcast_bytes(group, {characters.begin(), characters.end()}, 0,
                                      Deadline::after(kFileTimeout));
  return std::string(reinterpret_cast<const char*>(agreed.data()), agreed.size());
}

std::optional<TrainingState> load_shared_checkpoint(
    comm::Group group, const std::optional<std::filesystem::path>& path, torch::nn::Module& module,
    torch::optim::Optimizer& optimizer, const torch::Device& device) {
  Bytes state, optimizer_state;
  if (group.rank() == 0 && path) {
    state = encode_state(load_checkpoint(*path, module, optimizer));
    optimizer_state = pack(optimizer);
  }
  state = broadcast_bytes(group, std::move(state), 0, Deadline::after(kFileTimeout));
  if (state.empty()) return std::nullopt;
  optimizer_state =
      broadcast_bytes(group, std::move(optimizer_state), 0, Deadline::after(kFileTimeout));
  if (group.rank() != 0) unpack(optimizer_state, optimizer, device);
  return decode_state(state);
}

void require_finite_parameters(comm::Group group, const torch::nn::Module& module,
                               std::int64_t step, std::chrono::milliseconds timeout) {
  const std::vector<std::uint8_t> mine = {all_finite(module) ? std::uint8_t{1} : std::uint8_t{0}};
  std::vector<std::uint8_t> all(static_cast<std::size_t>(group.size()));
  group
      .all_gather(comm::buffer(std::span(mine)), comm::buffer(std::span(all)),
                  Deadline::after(timeout))
      .wait();
  const auto bad = std::ranges::find(all, std::uint8_t{0});
  if (bad == all.end()) return;
  const auto rank = static_cast<int>(bad - all.begin());
  throw Error(
      ErrorCode::NotFinite,
      fmt::format("after step {} the parameters on rank {} are not finite (NaN or infinity); "
                  "lower train.learning_rate. The last checkpoint is kept: go on from it "
                  "with --resume",
                  step, rank),
      rank);
}

}  // namespace bimetal::train
