#include "bimetal/job/deepspeed.h"

#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/base/json.h"
#include "bimetal/job/deepspeed/reader.h"

namespace bimetal::job {
namespace {

using deepspeed::BatchSizes;
using deepspeed::Json;
using deepspeed::Key;
using deepspeed::must_be_off;
using deepspeed::Value;
using deepspeed::without_effect;
using deepspeed::without_effect_if_set;

Key size_key(std::string_view name, std::optional<std::int64_t>& size) {
  return {name, [&size](const Value& value) { size = value.whole(1); }};
}

void read_reduction(const Value& value) {
  constexpr std::array<std::string_view, 2> kReductions = {"mean", "sum"};
  if (value.one_of(kReductions) == "sum") {
    value.unsupported("must be \"mean\": gradients are those of the mean over the whole batch");
  }
}

/// Keys that would train something else if they were left out.
std::vector<Key> keys_that_must_be_off() {
  return {must_be_off("amp", "take fp16, bf16 or torch_autocast"),
          must_be_off("sparse_attention", "attention is the model's"),
          must_be_off("progressive_layer_drop", "no layers are dropped"),
          must_be_off("curriculum_learning", "samples come in a random order"),
          must_be_off("data_efficiency", "samples come in a random order"),
          must_be_off("compression_training", "the model is trained as it is"),
          must_be_off("quantize_training", "the model is trained as it is"),
          must_be_off("eigenvalue", "the model is trained as it is"),
          must_be_off("expert_parallel", "ranks share the batch"),
          must_be_off("tensor_parallel", "ranks share the batch"),
          must_be_off("hybrid_engine", "training and `bimetal generate` are two programs"),
          must_be_off("elasticity", "give the batch sizes themselves")};
}

std::vector<Key> keys_without_effect() {
  constexpr const char* kSum = "gradients are weighed before they are summed, in their own type";
  constexpr const char* kShown = "progress is shown as it happens, and --report has all figures";
  constexpr const char* kSaved = "checkpoints are checked, and resumed on any ranks";
  return {without_effect_if_set("prescale_gradients", kSum),
          without_effect("gradient_predivide_factor", kSum),
          without_effect("communication_data_type", "[compression] shortens what is sent"),
          without_effect("seq_parallel_communication_data_type", "[compression] does"),
          without_effect_if_set("sparse_gradients", "gradients are dense"),
          without_effect_if_set("disable_allgather", "there is no other way to gather"),
          without_effect("steps_per_print", kShown),
          without_effect_if_set("dump_state", kShown),
          without_effect_if_set("memory_breakdown", kShown),
          without_effect_if_set("wall_clock_breakdown", "`bimetal train --profile` tells"),
          without_effect_if_set("flops_profiler", "`bimetal train --profile` tells"),
          without_effect_if_set("comms_logger", "`bimetal train --profile` tells"),
          without_effect_if_set("csv_monitor", "--report writes figures, and --monitor shows them"),
          without_effect_if_set("wandb", "tensorboard and --monitor are what there is"),
          without_effect_if_set("comet", "tensorboard and --monitor are what there is"),
          without_effect_if_set("autotuning", "`bimetal tune` and `bimetal plan` do"),
          without_effect("aio", "how much is read at a time is measured"),
          without_effect("data_types", "gradients are added up in the parameters' type"),
          without_effect("checkpoint", kSaved),
          without_effect_if_set("load_universal_checkpoint", kSaved),
          without_effect("use_node_local_storage", kSaved),
          without_effect("zero_allow_untested_optimizer", "every optimizer here is tested"),
          without_effect("zero_force_ds_cpu_optimizer", "there is one optimizer for all devices"),
          without_effect_if_set("dataloader_drop_last", "an epoch visits every sample once"),
          without_effect("log_level", "there is little to be said")};
}

void read_sections(const Value& file, JobConfig& job, BatchSizes& sizes, DeepSpeedLoop& loop) {
  auto& train = job.train;
  std::vector<Key> keys = {
      size_key("train_batch_size", sizes.train),
      size_key("train_micro_batch_size_per_gpu", sizes.micro),
      size_key("gradient_accumulation_steps", sizes.accumulation),
      {"managed_gradient_accumulation",
       [](const Value& value) {
         if (!value.flag()) value.unsupported("must be true: steps are counted for the loop");
       }},
      {"optimizer",
       [&](const Value& value) {
         loop.optimizer = true;
         read_optimizer(value, train);
       }},
      {"scheduler",
       [&](const Value& value) {
         loop.scheduler = true;
         read_scheduler(value, train);
       }},
      {"fp16", [&](const Value& value) { read_fp16(value, train); }},
      {"bf16", [&](const Value& value) { read_bf16(value, train); }},
      {"bfloat16", [&](const Value& value) { read_bf16(value, train); }},
      {"torch_autocast", [&](const Value& value) { read_torch_autocast(value, train); }},
      {"gradient_clipping", [&](const Value& value) { train.clip_norm = value.number(0); }},
      {"gradient_allreduce_op", read_reduction},
      {"zero_optimization", [&](const Value& value) { read_zero(value, job); }},
      {"activation_checkpointing",
       [&](const Value& value) { read_activation_checkpointing(value, train); }},
      {"tensorboard", [&](const Value& value) { read_tensorboard(value, job.monitor); }},
  };
  for (auto&& more : {keys_that_must_be_off(), keys_without_effect()}) {
    keys.insert(keys.end(), more.begin(), more.end());
  }
  read_object(file, keys);
}

void require_one_precision(const Value& file) {
  const auto enabled = [&](const char* name) {
    const auto section = file.json.find(name);
    return section != file.json.end() && section->is_object() &&
           section->value("enabled", Json(false)) == true;
  };
  if (enabled("fp16") && (enabled("bf16") || enabled("bfloat16"))) {
    file.refuse("fp16.enabled and bf16.enabled are both true: take one of them");
  }
}

Json parsed(std::string_view json, const std::string& origin) {
  try {
    // Comments are no JSON, but DeepSpeed's users write them.
    bool too_deep = false;
    auto root = Json::parse(json, json_depth_limit(too_deep), true, true);
    if (!too_deep) return root;
    throw Error(ErrorCode::InvalidArgument, origin + ": its brackets are nested too deeply");
  } catch (const Json::parse_error& error) {
    throw Error(ErrorCode::InvalidArgument, origin + ": is no JSON: " + error.what());
  }
}

}  // namespace

DeepSpeedLoop apply_deepspeed(std::string_view json, const std::string& origin, int ranks,
                              JobConfig& job, const Notify& notify) {
  const Json root = parsed(json, origin);
  std::set<std::string> told;
  const Notify once = [&](const std::string& notice) {
    if (notify && told.insert(notice).second) notify(notice);
  };
  const Value file{root, origin, "", once};
  DeepSpeedLoop loop;
  BatchSizes sizes;
  read_sections(file, job, sizes, loop);
  require_one_precision(file);
  sizes = completed(sizes, ranks, file);
  if (sizes.micro) job.train.micro_batch = *sizes.micro;
  if (sizes.train) job.train.global_batch = *sizes.train;
  loop.micro_batch = sizes.micro.value_or(0);
  loop.accumulation = sizes.accumulation.value_or(1);
  return loop;
}

DeepSpeedLoop apply_deepspeed(const std::filesystem::path& file, int ranks, JobConfig& job,
                              const Notify& notify) {
  std::error_code ignored;
  std::ifstream stream;
  int cause = EISDIR;
  if (!std::filesystem::is_directory(file, ignored)) {
    stream.open(file, std::ios::binary);
    cause = errno;
  }
  if (!stream.is_open()) {
    throw Error(ErrorCode::InvalidArgument, file.string() + ": cannot read DeepSpeed's file: " +
                                                std::generic_category().message(cause));
  }
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  return apply_deepspeed(text, file.string(), ranks, job, notify);
}

}  // namespace bimetal::job
