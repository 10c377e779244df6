#include "bimetal/job/job_keys.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::job {
namespace {

constexpr auto kAlike = Ranks::Alike;
constexpr auto kMayDiffer = Ranks::MayDiffer;

}  // namespace

std::vector<JobKey> job_keys(JobConfig& job) {
  auto& [model, data, train, parallel, servers, zero, mesh, compression, checkpoint, cluster,
         elastic, fabric, monitor] = job;
  return {
      {"model", "name", kAlike, text(model.name)},
      {"model", "python", kAlike, text(model.python)},
      {"model", "compile", kMayDiffer, flag(model.compile)},
      {"model", "hidden", kAlike, whole(model.hidden, 0)},
      {"model", "norm", kAlike, one_of(model.norm, {"group", "batch"})},
      {"model", "norm_group", kAlike, whole(model.norm_group, 2)},
      {"model", "layers", kAlike, whole(model.layers, 0)},
      {"model", "width", kAlike, whole(model.width, 0)},
      {"model", "heads", kAlike, whole(model.heads, 0)},
      {"model", "kv_heads", kAlike, whole(model.kv_heads, 0)},
      {"model", "context", kAlike, whole(model.context, 0)},
      {"model", "vocabulary", kAlike, whole(model.vocabulary, 0)},
      {"model", "dropout", kAlike, number(model.dropout, kFraction)},
      {"model", "weights", kMayDiffer, text(model.weights)},
      {"data", "name", kAlike, text(data.name)},
      {"data", "path", kMayDiffer, text(data.path)},
      {"data", "send", kAlike, flag(data.send)},
      {"data", "send_max_gb", kAlike, number(data.send_max_gb, kPositive)},
      {"data", "bootstrap_seed", kAlike, whole(data.bootstrap_seed, 0)},
      {"data", "image_size", kAlike, whole(data.image_size, 0, 4096)},
      {"data", "augment", kAlike, flag(data.augment)},
      {"data", "skip_broken", kAlike, flag(data.skip_broken)},
      {"data", "mean", kAlike, numbers(data.mean, Range{})},
      {"data", "stddev", kAlike, numbers(data.stddev, kPositive)},
      {"data", "block", kAlike, whole(data.block, 0)},
      {"data", "documents", kAlike, one_of(data.documents, {"join", "separate"})},
      {"data", "validation", kAlike, number(data.validation, kFraction)},
      {"data", "validation_seed", kAlike, whole(data.validation_seed, 0)},
      {"train", "epochs", kAlike, whole(train.epochs, 1)},
      {"train", "steps", kAlike, whole(train.steps, 0)},
      {"train", "global_batch", kAlike, whole(train.global_batch, 1)},
      {"train", "micro_batch", kMayDiffer, whole(train.micro_batch, 0)},
      {"train", "recompute", kMayDiffer,
       word_or_count(train.recompute, {"none", "all", "sqrt", "auto"})},
      {"train", "check_memory", kAlike, one_of(train.check_memory, {"refuse", "warn", "off"})},
      {"train", "deterministic", kAlike, flag(train.deterministic)},
      {"train", "seed", kAlike, whole(train.seed, 0)},
      {"train", "dtype", kAlike, one_of(train.dtype, {"float32", "float64"})},
      {"train", "precision", kMayDiffer,
       one_of(train.precision, {"float32", "tf32", "bfloat16", "float16", "auto"})},
      {"train", "memory_format", kMayDiffer,
       one_of(train.memory_format, {"contiguous", "channels_last", "auto"})},
      {"train", "graphs", kMayDiffer, flag(train.graphs)},
      {"train", "loss_scale", kAlike, number(train.loss_scale, kNotNegative)},
      {"train", "loss_scale_initial", kAlike, number(train.loss_scale_initial, kPositive)},
      {"train", "loss_scale_window", kAlike, whole(train.loss_scale_window, 1)},
      {"train", "loss_scale_hysteresis", kAlike, whole(train.loss_scale_hysteresis, 1)},
      {"train", "loss_scale_min", kAlike, number(train.loss_scale_min, kPositive)},
      {"train", "optimizer", kAlike,
       one_of(train.optimizer, {"sgd", "adam", "adamw", "lars", "lamb"})},
      {"train", "learning_rate", kAlike, number(train.learning_rate, kPositive)},
      {"train", "momentum", kAlike, number(train.momentum, kFraction)},
      {"train", "weight_decay", kAlike, number(train.weight_decay, kNotNegative)},
      {"train", "decay_on", kAlike, one_of(train.decay_on, {"all", "matrices"})},
      {"train", "clip_norm", kAlike, number(train.clip_norm, kNotNegative)},
      {"train", "clip_value", kAlike, number(train.clip_value, kNotNegative)},
      {"train", "base_batch", kAlike, whole(train.base_batch, 0)},
      {"train", "beta1", kAlike, number(train.beta1, kFraction)},
      {"train", "beta2", kAlike, number(train.beta2, kFraction)},
      {"train", "epsilon", kAlike, number(train.epsilon, kNotNegative)},
      {"train", "trust_coefficient", kAlike, number(train.trust_coefficient, kPositive)},
      {"train", "warmup_steps", kAlike, whole(train.warmup_steps, 0)},
      {"train", "warmup_from", kAlike, number(train.warmup_from, kNotNegative)},
      {"train", "warmup", kAlike, one_of(train.warmup, {"linear", "log"})},
      {"train", "warmup_lag", kAlike, whole(train.warmup_lag, 0)},
      {"train", "schedule", kAlike, one_of(train.schedule, {"constant", "linear", "cosine"})},
      {"train", "decay_steps", kAlike, whole(train.decay_steps, 0)},
      {"train", "min_learning_rate_ratio", kAlike, number(train.min_learning_rate_ratio, kRatio)},
      {"train", "evaluate", kAlike, flag(train.evaluate)},
      {"parallel", "mode", kAlike, one_of(parallel.mode, {"all_reduce", "server"})},
      {"parallel", "balance", kAlike, balance_policy(parallel)},
      {"parallel", "bucket_mb", kAlike, number(parallel.bucket_mb, kMegabytes)},
      {"parallel", "timeout_s", kMayDiffer, number(parallel.timeout_s, kSeconds)},
      {"parallel", "exact", kAlike, one_of(parallel.exact, {"strict", "relaxed"})},
      {"zero", "level", kAlike, whole(zero.level, 0, 3)},
      {"zero", "shards", kAlike, shard_weights(zero)},
      {"zero", "offload_optimizer", kMayDiffer,
       one_of(zero.offload_optimizer, {"none", "host", "disk"})},
      {"zero", "offload_parameters", kMayDiffer,
       one_of(zero.offload_parameters, {"none", "host", "disk"})},
      {"zero", "offload_path", kMayDiffer, text(zero.offload_path)},
      {"zero", "copies", kAlike, whole(zero.copies, 1, 2)},
      {"zero", "keep_below", kAlike, whole(zero.keep_below, 0)},
      {"zero", "update", kAlike, one_of(zero.update, {"step", "backward"})},
      {"mesh", "stages", kAlike, count_or_auto(mesh.stages, kAutoStages)},
      {"mesh", "replicas", kAlike, mesh_replicas(mesh)},
      {"mesh", "tensor", kAlike, mesh_tensor(mesh)},
      {"mesh", "cuts", kAlike, rising_numbers(mesh.cuts)},
      {"mesh", "tensor_weights", kAlike, tensor_parts(mesh)},
      {"mesh", "sequence_parallel", kAlike, flag(mesh.sequence_parallel)},
      {"mesh", "schedule", kAlike,
       one_of(mesh.schedule, {"gpipe", "1f1b", "interleaved", "zero_bubble", kAutoSchedule})},
      {"mesh", "micro_batches", kAlike, whole(mesh.micro_batches, 0)},
      {"mesh", "chunks", kAlike, whole(mesh.chunks, 1)},
      {"servers", "count", kAlike, server_weights(servers)},
      {"servers", "replicas", kAlike, whole(servers.replicas, 1, 2)},
      {"servers", "consistency", kAlike, one_of(servers.consistency, {"sync", "async", "bounded"})},
      {"servers", "staleness", kAlike, whole(servers.staleness, 0)},
      {"servers", "prefetch", kAlike, one_of(servers.prefetch, {"auto", "on", "off"})},
      {"servers", "staleness_aware", kAlike, flag(servers.staleness_aware)},
      {"servers", "weight_prediction", kAlike, flag(servers.weight_prediction)},
      {"servers", "max_not_finite", kAlike, whole(servers.max_not_finite, 1)},
      {"compression", "gradients", kAlike,
       one_of(compression.gradients,
              {"none", "float16", "bfloat16", "int8", "int4", "topk", "powersgd", "sign"})},
      {"compression", "parameters", kAlike,
       one_of(compression.parameters, {"none", "float16", "bfloat16", "int8"})},
      {"compression", "activations", kAlike,
       one_of(compression.activations, {"none", "float16", "bfloat16", "int8"})},
      {"compression", "links", kAlike, one_of(compression.links, {"between_islands", "all"})},
      {"compression", "topk_density", kAlike, number(compression.topk_density, kShare)},
      {"compression", "topk_warmup_steps", kAlike, whole(compression.topk_warmup_steps, 0)},
      {"compression", "powersgd_rank", kAlike, whole(compression.powersgd_rank, 1)},
      {"checkpoint", "dir", kMayDiffer, text(checkpoint.dir)},
      {"checkpoint", "every_steps", kAlike, whole(checkpoint.every_steps, 0)},
      {"checkpoint", "every_minutes", kAlike, number(checkpoint.every_minutes, kNotNegative)},
      {"checkpoint", "keep", kMayDiffer, whole(checkpoint.keep, 1)},
      {"checkpoint", "keep_best", kAlike, flag(checkpoint.keep_best)},
      {"cluster", "workers", kMayDiffer, worker_specs(cluster.workers)},
      {"cluster", "join_timeout_s", kMayDiffer, number(cluster.join_timeout_s, kSeconds)},
      {"elastic", "keeper", kAlike, text(elastic.keeper)},
      {"elastic", "max_workers", kAlike, whole(elastic.max_workers, 0)},
      {"elastic", "min_workers", kAlike, whole(elastic.min_workers, 0)},
      {"elastic", "patience_s", kAlike, number(elastic.patience_s, kSeconds)},
      {"fabric", "islands", kAlike, one_of(fabric.islands, {"auto", "off"})},
      {"fabric", "peer_timeout_s", kAlike, number(fabric.peer_timeout_s, kSecondsOrNone)},
      {"fabric", "transport", kMayDiffer, one_of(fabric.transport, {"auto", "tcp", "shm", "mpi"})},
      {"monitor", "listen", kMayDiffer, endpoint(monitor.listen)},
      {"monitor", "page", kMayDiffer, one_of(monitor.page, {"auto", "on", "off"})},
      {"monitor", "tensorboard_dir", kMayDiffer, text(monitor.tensorboard_dir)},
      {"monitor", "tracker_checkpoints", kMayDiffer, flag(monitor.tracker_checkpoints)},
      {"monitor", "trackers", kMayDiffer,
       names_or_word(monitor.trackers, {"trackio", "wandb", "mlflow", "tensorboard"},
                     kAutoTrackers)},
  };
}

const std::vector<SectionWord>& section_words() {
  static const std::vector<SectionWord> words = {
      {"mesh", "auto", {{"stages", "auto"}, {"tensor", "auto"}, {"tensor_weights", "speed"}}},
  };
  return words;
}

JobFacts facts_of(const JobConfig& job) {
  JobConfig copy = job;  // the table binds to members that could be written
  JobFacts facts;
  for (const JobKey& key : job_keys(copy)) {
    if (key.ranks != Ranks::Alike) continue;
    auto text = key.value.write();
    if (text.starts_with('"')) text = text.substr(1, text.size() - 2);
    facts.emplace_back(fmt::format("{}.{}", key.section, key.name), std::move(text));
  }
  return facts;
}

namespace {

/// Every rank's texts, in the order of ranks and of `mine`. All ranks have the same number of
/// texts.
std::vector<std::vector<std::string>> gathered(comm::Group group,
                                               const std::vector<std::string>& mine,
                                               std::chrono::milliseconds timeout) {
  WireWriter writer;
  for (const auto& text : mine) writer.string(text);
  std::vector<std::vector<std::string>> all;
  for (const auto& bytes :
       comm::all_gather_bytes(group, std::move(writer).take(), Deadline::after(timeout))) {
    WireReader reader(bytes);
    auto& texts = all.emplace_back();
    for (std::size_t i = 0; i < mine.size(); ++i) texts.push_back(reader.string());
  }
  return all;
}

/// `said`: the message on the i-th text, which differs on that rank, given all ranks' texts.
template <typename Said>
void require_same(comm::Group group, const std::vector<std::string>& mine,
                  std::chrono::milliseconds timeout, const Said& said) {
  const auto all = gathered(std::move(group), mine, timeout);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (all[rank][i] == all[0][i]) continue;
      throw Error(ErrorCode::CallMismatch, said(i, rank, all), static_cast<int>(rank));
    }
  }
}

}  // namespace

void require_same_job(comm::Group group, const JobConfig& job, std::chrono::milliseconds timeout) {
  const auto facts = facts_of(job);
  std::vector<std::string> values;
  for (const auto& [key, value] : facts) values.push_back(value);
  require_same(std::move(group), values, timeout, [&](auto i, auto rank, const auto& all) {
    return fmt::format("{} is '{}' on rank {} but '{}' on rank 0: give every rank the same job",
                       facts[i].first, all[rank][i], rank, all[0][i]);
  });
}

void require_same_facts(comm::Group group, const std::vector<std::string>& facts,
                        std::chrono::milliseconds timeout) {
  require_same(std::move(group), facts, timeout, [](auto i, auto rank, const auto& all) {
    return fmt::format("rank {} has '{}', and rank 0 has '{}': give every rank the same", rank,
                       all[rank][i], all[0][i]);
  });
}

}  // namespace bimetal::job
