#include <fmt/format.h>

#include <array>
#include <cmath>

#include "bimetal/job/deepspeed/reader.h"

namespace bimetal::job::deepspeed {
namespace {

std::int64_t divided_up(std::int64_t number, std::int64_t by) {
  return (number + by - 1) / by;
}

void require_agreement(const BatchSizes& sizes, int ranks, const Value& file) {
  const auto of_rank = *sizes.micro * *sizes.accumulation;
  const bool agree = ranks > 0 ? *sizes.train == of_rank * ranks : *sizes.train % of_rank == 0;
  if (agree) return;
  const auto product =
      ranks > 0 ? fmt::format("{} × {} × {} ranks = {}", *sizes.micro, *sizes.accumulation, ranks,
                              of_rank * ranks)
                : fmt::format("a multiple of {} × {}", *sizes.micro, *sizes.accumulation);
  file.refuse(fmt::format(
      "the batch sizes do not agree: train_batch_size is {}, but train_micro_batch_size_per_gpu × "
      "gradient_accumulation_steps × ranks is {}; change one of them, or leave one out",
      *sizes.train, product));
}

constexpr double kBytesOfElement = 4;  ///< gradients are float32
constexpr const char* kUnits = "the model's units are what is gathered and freed";
constexpr const char* kBuffers = "buffers have the size that the model's units need";

/// "none", "cpu" or "nvme" as this project calls them.
std::string place_of(const Value& value) {
  static constexpr std::array<std::string_view, 3> kDevices = {"none", "cpu", "nvme"};
  const auto device = value.one_of(kDevices);
  return device == "cpu" ? "host" : device == "nvme" ? "disk" : "none";
}

void read_path(const Value& value, std::string& path) {
  const auto own = value.text();
  if (!path.empty() && path != own) {
    value.refuse("differs from \"" + path + "\": one folder serves both offloads");
  }
  path = own;
}

/// offload_optimizer or offload_param; `path` is that of the other, where it has one.
void read_offload(const Value& section, std::string& place, std::string& path) {
  read_object(section,
              {{"device", [&](const Value& value) { place = place_of(value); }},
               {"nvme_path", [&](const Value& value) { read_path(value, path); }},
               without_effect("pin_memory", "host memory is pinned where the device gains by it"),
               without_effect("buffer_count", kBuffers),
               without_effect("buffer_size", kBuffers),
               without_effect("max_in_cpu", kBuffers),
               without_effect("pipeline_read", "reading goes on beside the update"),
               without_effect("pipeline_write", "writing goes on beside the update"),
               without_effect("fast_init", "the state is made where it lives"),
               without_effect("ratio", "all of the state goes there"),
               without_effect("cpuadam_cores_perc", "a worker's threads are cpu:threads=N"),
               without_effect_if_set("super_offload", "there is one kind of offload")});
  if (place == "disk" && path.empty()) section.refuse("needs \"nvme_path\"");
}

/// How these keys were spelt before: true is "cpu".
Key old_offload(std::string_view name, std::string& place) {
  return {name, [&place](const Value& value) {
            if (value.flag()) place = "host";
          }};
}

std::vector<Key> keys_without_effect() {
  std::vector<Key> keys = {
      without_effect("overlap_comm", "communication always goes on beside the computation"),
      without_effect("contiguous_gradients", "gradients lie in buckets in any case"),
      without_effect("allgather_partitions", "parameters are always gathered collectively"),
      without_effect("allgather_bucket_size", kUnits),
      without_effect("reduce_scatter", "from level 2 on gradients are reduced to their owners"),
      without_effect("use_multi_rank_bucket_allreduce", "buckets do not depend on the ranks"),
      without_effect("round_robin_gradients", "gradients are reduced to their owners at once"),
      without_effect("grad_hooks", "gradients are reduced while backward runs"),
      without_effect("load_from_fp32_weights", kUnits),
      without_effect("elastic_checkpoint", "checkpoints can be resumed on other ranks"),
      without_effect("ignore_unused_parameters", "parameters without a gradient are left alone"),
      without_effect_if_set("legacy_stage1", "there is one level 1"),
      without_effect("sub_group_size", kUnits),
      without_effect("cpu_offload_use_pin_memory",
                     "host memory is pinned where the device gains by it"),
      without_effect("stage3_gather_16bit_weights_on_model_save",
                     "`bimetal export` writes whole weights of any checkpoint"),
      without_effect("stage3_gather_fp16_weights_on_model_save",
                     "`bimetal export` writes whole weights of any checkpoint"),
      without_effect_if_set("log_trace_cache_warnings", kUnits),
      without_effect("memory_efficient_linear", "autograd keeps no gathered weights"),
      without_effect_if_set("pipeline_loading_checkpoint", "each rank reads its own part"),
      without_effect("override_module_apply", kUnits),
      without_effect_if_set("enable_sanity_checks", "calls of all ranks are always compared"),
      without_effect("leaf_module", kUnits),
  };
  for (const char* name :
       {"stage3_prefetch_bucket_size", "stage3_model_persistence_threshold",
        "stage3_max_live_parameters", "stage3_max_reuse_distance",
        "stage3_module_granularity_threshold", "stage3_use_all_reduce_for_fetch_params",
        "stage3_allgather_sequential"}) {
    keys.push_back(without_effect(name, kUnits));
  }
  return keys;
}

}  // namespace

BatchSizes completed(BatchSizes sizes, int ranks, const Value& file) {
  auto& [train, micro, accumulation] = sizes;
  if (train && micro && accumulation) {
    require_agreement(sizes, ranks, file);
  } else if (micro && !train) {
    if (ranks == 0) {
      file.refuse(
          "needs train_batch_size: how many ranks there will be is not known, so that it does not "
          "follow from train_micro_batch_size_per_gpu");
    }
    if (!accumulation) accumulation = 1;
    train = *micro * *accumulation * ranks;
  } else if (train && micro && ranks > 0) {
    accumulation = divided_up(*train, *micro * ranks);
  }
  return sizes;
}

namespace {

constexpr const char* kMasters = "parameters, gradients and the optimizer's state are float32";

void choose(const Value& value, TrainConfig& train, const char* precision) {
  if (value.flag()) train.precision = precision;
}

void choose_float16(const Value& value, TrainConfig& train) {
  choose(value, train, "float16");
  if (!value.json.get<bool>()) return;
  // DeepSpeed's values for the keys that are left out.
  const TrainConfig usual;
  train.loss_scale = 0;
  train.loss_scale_initial = usual.loss_scale_initial;
  train.loss_scale_window = 1000;
  train.loss_scale_hysteresis = 2;
  train.loss_scale_min = usual.loss_scale_min;
}

void read_scale_power(const Value& value, TrainConfig& train) {
  const auto power = value.whole(0);
  if (power > 127) value.refuse("must be at most 127: float32 ends there");
  train.loss_scale_initial = std::exp2(static_cast<double>(power));
}

}  // namespace

void read_fp16(const Value& section, TrainConfig& train) {
  read_object(
      section,
      {{"enabled", [&](const Value& value) { choose_float16(value, train); }},
       {"loss_scale", [&](const Value& value) { train.loss_scale = value.number(0); }},
       {"initial_scale_power", [&](const Value& value) { read_scale_power(value, train); }},
       {"loss_scale_window", [&](const Value& value) { train.loss_scale_window = value.whole(1); }},
       {"hysteresis", [&](const Value& value) { train.loss_scale_hysteresis = value.whole(1); }},
       {"min_loss_scale",
        [&](const Value& value) { train.loss_scale_min = value.number_above(0); }},
       without_effect_if_set("consecutive_hysteresis",
                             "overflows are counted anew when the scale grows"),
       without_effect("auto_cast", "inputs are cast where an operation takes float16"),
       without_effect_if_set("fp16_master_weights_and_grads", kMasters)});
}

void read_bf16(const Value& section, TrainConfig& train) {
  read_object(section,
              {{"enabled", [&](const Value& value) { choose(value, train, "bfloat16"); }},
               without_effect("immediate_grad_update", "gradients are added up in float32"),
               without_effect("check_grad_overflow",
                              "a gradient that is not finite is an error with gradient_clipping"),
               without_effect("check_overflow",
                              "a gradient that is not finite is an error with gradient_clipping"),
               without_effect_if_set("bf16_master_weights_and_grads", kMasters),
               without_effect_if_set("bf16_optimizer_states", kMasters)});
}

void read_torch_autocast(const Value& section, TrainConfig& train) {
  static constexpr std::array<std::string_view, 4> kTypes = {"bfloat16", "float16",
                                                             "torch.bfloat16", "torch.float16"};
  bool enabled = false;
  std::string precision = "bfloat16";
  read_object(section, {{"enabled", [&](const Value& value) { enabled = value.flag(); }},
                        {"dtype",
                         [&](const Value& value) {
                           precision =
                               value.one_of(kTypes).ends_with("bfloat16") ? "bfloat16" : "float16";
                         }},
                        without_effect("lower_precision_safe_modules",
                                       "torch's autocast knows which operations are safe")});
  if (enabled) train.precision = precision;
}

void read_zero(const Value& section, JobConfig& job) {
  auto& zero = job.zero;
  std::string path;
  auto keys = keys_without_effect();
  keys.insert(
      keys.begin(),
      {{"stage",
        [&](const Value& value) {
          zero.level = value.whole(0);
          if (zero.level > 3) value.refuse("must be 0, 1, 2 or 3");
        }},
       {"offload_optimizer",
        [&](const Value& value) { read_offload(value, zero.offload_optimizer, path); }},
       {"offload_param",
        [&](const Value& value) { read_offload(value, zero.offload_parameters, path); }},
       old_offload("cpu_offload", zero.offload_optimizer),
       old_offload("cpu_offload_param", zero.offload_parameters),
       {"reduce_bucket_size",
        [&](const Value& value) {
          const auto bytes = static_cast<double>(value.whole(1)) * kBytesOfElement;
          job.parallel.bucket_mb = bytes / (1 << 20);
        }},
       {"stage3_param_persistence_threshold",
        [&](const Value& value) { zero.keep_below = value.whole(0); }},
       must_be_off("zero_quantized_weights", "compression.gradients shortens what is sent"),
       must_be_off("zero_quantized_nontrainable_weights", "weights keep their precision"),
       must_be_off("zero_quantized_gradients", "compression.gradients shortens what is sent"),
       must_be_off("zeropp_loco_param", "compression.gradients shortens what is sent"),
       must_be_off("save_muon_momentum_buffer_in_memory", "there is no Muon"),
       must_be_off("zenflow", "updates are never delayed"),
       without_effect("zero_hpz_partition_size", "shards are spread over all ranks"),
       without_effect("mics_shard_size", "shards are spread over all ranks"),
       without_effect("mics_hierarchical_params_gather", "shards are spread over all ranks")});
  read_object(section, keys);
  if (!path.empty()) zero.offload_path = path;
}

void read_activation_checkpointing(const Value& section, TrainConfig& train) {
  bool saves = false;
  const auto ask = [&](std::string_view name) {
    return Key{name, [&](const Value& value) {
                 saves |= value.json.is_number() ? value.whole(0) > 0 : value.flag();
               }};
  };
  read_object(section, {ask("partition_activations"), ask("cpu_checkpointing"),
                        ask("contiguous_memory_optimization"), ask("number_checkpoints"),
                        without_effect_if_set("synchronize_checkpoint_boundary",
                                              "recomputation waits for nothing"),
                        without_effect_if_set("profile", "`bimetal train --profile` tells")});
  if (saves && train.recompute == "none") train.recompute = "all";
}

void read_tensorboard(const Value& section, MonitorConfig& monitor) {
  bool enabled = false;
  std::filesystem::path folder = "runs";
  std::string name = "DeepSpeedJobName";
  read_object(section, {{"enabled", [&](const Value& value) { enabled = value.flag(); }},
                        {"output_path",
                         [&](const Value& value) {
                           if (!value.text().empty()) folder = value.text();
                         }},
                        {"job_name", [&](const Value& value) { name = value.text(); }}});
  if (enabled) monitor.tensorboard_dir = (folder / name).string();
}

}  // namespace bimetal::job::deepspeed
