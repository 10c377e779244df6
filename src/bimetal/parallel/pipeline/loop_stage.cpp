#include "bimetal/parallel/pipeline/loop_stage.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <array>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/parallel/data/gradient_hooks.h"
#include "bimetal/parallel/data/replicated_model.h"

namespace bimetal::parallel::pipeline {
namespace {

RunnerOptions runner_options(const LoopStageOptions& options) {
  RunnerOptions runner;
  runner.kind = options.schedule;
  runner.chunks = options.chunks;
  runner.split = options.split;
  runner.compression = options.compression;
  runner.device = options.device;
  runner.timeout = options.timeout;
  runner.timeout_name = "the timeout of init_process_group()";
  runner.around = options.around;
  return runner;
}

Sync sync_of(const task::ModelState& own, const std::shared_ptr<const Mesh>& mesh,
             const std::vector<Tied>& tied, const LoopStageOptions& options) {
  ReplicatedModelOptions replicated;
  replicated.bucket_bytes = options.bucket_bytes;
  replicated.timeout = options.timeout;
  const auto store = std::make_shared<ReplicatedModel>(own, mesh->replicas(), replicated);
  return {store, {std::make_shared<StageSums>(mesh, store, tied, options.timeout)}};
}

/// Behind which there is nobody to talk to.
bool is_of_fabric(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return true;
  } catch (...) {
    return false;
  }
}

Error failed_on(const MeshShape& shape, int rank) {
  return {ErrorCode::Aborted,
          fmt::format("{} (rank {}) has failed in this batch, of which no rank keeps gradients: "
                      "its own error says why",
                      name_of(shape, rank), rank),
          rank};
}

}  // namespace

LoopStage::LoopStage(comm::Group world, const MeshShape& shape, const task::ModelState& own,
                     const std::vector<Tied>& tied, LoopStageOptions options)
    : options_(std::move(options)),
      mesh_(std::make_shared<const Mesh>(std::move(world), shape)),
      parameters_(task::tensors_of(trained_parameters(own.parameters))),
      sync_(sync_of(own, mesh_, tied, options_)),
      runner_(*mesh_, runner_options(options_)) {}

std::optional<double> LoopStage::train(const LoopBatch& batch, double scale,
                                       const Forward& forward) {
  std::vector<torch::Tensor> kept;
  std::exception_ptr failure;
  try {
    kept = take_gradients();
  } catch (...) {
    failure = std::current_exception();
  }
  const auto weight = weight_of_all(batch, failure);
  try {
    sync_.begin_step(weight, scale);
    auto result = runner_.run(schedule::Deal(mesh_->widths(), batch.samples), work_of(forward),
                              sync_.store());
    sync_.sum_gradients();
    const auto loss = agree(batch, std::move(result));
    if (!loss) {
      put_gradients(kept);
      return std::nullopt;
    }
    add_gradients(kept);
    return *loss / static_cast<double>(weight);
  } catch (...) {
    put_gradients(kept);
    throw;
  }
}

std::optional<double> LoopStage::evaluate(const LoopBatch& batch, const Forward& forward) {
  const auto weight = weight_of_all(batch, nullptr);
  double loss_sum = 0;
  auto result =
      runner_.run_forward(schedule::Deal(mesh_->widths(), batch.samples), work_of(forward),
                          [&](int /*micro_batch*/, const task::Values& outputs) {
                            loss_sum += outputs.front().item<double>();
                          });
  result.loss_sum = loss_sum;
  const auto sum = agree(batch, std::move(result));
  return sum ? std::optional(*sum / static_cast<double>(weight)) : std::nullopt;
}

std::int64_t LoopStage::weight_of_all(const LoopBatch& own,
                                      const std::exception_ptr& failure) const {
  using Told = std::array<std::int64_t, 3>;  // the last one: 1 where it has failed
  const Told mine{own.weight, own.digest, failure ? 1 : 0};
  auto world = mesh_->world();
  std::vector<Told> all(static_cast<std::size_t>(world.size()));
  world
      .all_gather(comm::buffer(std::span(mine)),
                  comm::buffer(std::span(all.front().data(), mine.size() * all.size())), deadline())
      .wait();
  if (failure) std::rethrow_exception(failure);
  for (int rank = 0; rank < world.size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)][2] != 0) throw failed_on(mesh_->shape(), rank);
  }
  std::int64_t weight = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    const int first = rank_at(mesh_->shape(), {0, place_of(mesh_->shape(), rank).replica, 0});
    const auto& told = all[static_cast<std::size_t>(rank)];
    if (told != all[static_cast<std::size_t>(first)]) {
      throw Error(ErrorCode::CallMismatch,
                  fmt::format("{} (rank {}) has another batch than rank {}, with which it computes "
                              "this one: give all stages of a replica the same batches (a loader "
                              "that shuffles needs a generator of the same seed on each rank)",
                              name_of(mesh_->shape(), rank), rank, first),
                  rank);
    }
    if (rank == first) weight += told[0];
  }
  if (weight > 0) return weight;
  throw Error(ErrorCode::InvalidArgument,
              "the batch has nothing to learn from: its weight is 0 (a causal model's labels are "
              "all -100); leave such batches out");
}

StageWork LoopStage::work_of(const Forward& forward) const {
  StageWork work;
  work.inputs = [](int /*micro_batch*/) { return task::Values(); };
  work.forward = forward;
  work.loss_sum = [](int /*micro_batch*/, const task::Values& outputs) {
    return outputs.empty() ? torch::Tensor() : outputs.front();
  };
  work.survivable = [this](const std::exception_ptr& error) {
    return !is_of_fabric(error) && (!options_.survivable || options_.survivable(error));
  };
  return work;
}

LoopStage::Fared LoopStage::fared(const LoopBatch& batch, std::exception_ptr& error) const {
  if (!error) return Fared::well;
  const bool finer = std::ranges::max(batch.samples) > 1 && options_.out_of_memory(error);
  if (!finer) return Fared::failed;
  error = nullptr;  // and everything that it keeps of the batch
  try {
    device::give_memory_back(options_.device);
    return Fared::needs_smaller;
  } catch (...) {
    error = std::current_exception();  // the others wait to hear of it
    return Fared::failed;
  }
}

std::optional<double> LoopStage::agree(const LoopBatch& batch, Runner::Result result) const {
  using Told = std::array<double, 2>;
  const auto own = fared(batch, result.error);
  const Told mine{result.loss_sum, static_cast<double>(own)};
  auto world = mesh_->world();
  std::vector<double> all(mine.size() * static_cast<std::size_t>(world.size()));
  world.all_gather(comm::buffer(std::span(mine)), comm::buffer(std::span(all)), deadline()).wait();
  if (result.error) std::rethrow_exception(result.error);
  double sum = 0;
  bool smaller = false;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank) * mine.size();
    sum += all[at];
    const auto theirs = static_cast<Fared>(static_cast<int>(all[at + 1]));
    smaller = smaller || theirs == Fared::needs_smaller;
    if (theirs == Fared::failed) throw failed_on(mesh_->shape(), rank);
  }
  return smaller ? std::nullopt : std::optional(sum);
}

// The store drops present gradients when a step begins, and may have it in memory of its own.
std::vector<torch::Tensor> LoopStage::take_gradients() {
  std::vector<torch::Tensor> kept;
  for (const auto& parameter : parameters_) {
    const auto& gradient = parameter.grad();
    kept.push_back(gradient.defined() ? gradient.clone() : torch::Tensor());
  }
  return kept;
}

void LoopStage::put_gradients(const std::vector<torch::Tensor>& kept) {
  for (std::size_t i = 0; i < kept.size(); ++i) parameters_[i].mutable_grad() = kept[i];
}

void LoopStage::add_gradients(const std::vector<torch::Tensor>& kept) {
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i].defined()) continue;
    auto& gradient = parameters_[i].mutable_grad();
    if (gradient.defined()) {
      gradient.add_(kept[i]);
    } else {
      gradient = kept[i];
    }
  }
}

}  // namespace bimetal::parallel::pipeline
