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
  // What DeepSpeed takes for the keys that are left out.
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

}  // namespace bimetal::job::deepspeed
