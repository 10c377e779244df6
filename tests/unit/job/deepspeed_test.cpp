#include "bimetal/job/deepspeed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::job {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Applied {
  JobConfig job;
  DeepSpeedLoop loop;
  std::vector<std::string> notices;
};

Applied apply(const std::string& json, int ranks = 0, JobConfig job = {}) {
  Applied applied{.job = std::move(job), .loop = {}, .notices = {}};
  applied.loop = apply_deepspeed(json, "ds.json", ranks, applied.job,
                                 [&](const auto& notice) { applied.notices.push_back(notice); });
  return applied;
}

TrainConfig train_of(const std::string& json, int ranks = 0) {
  return apply(json, ranks).job.train;
}

std::string flaw_of(const std::string& json, int ranks = 0,
                    ErrorCode code = ErrorCode::InvalidArgument) {
  return expect_error(code, {}, [&] { apply(json, ranks); }).what();
}

/// The whole of a usual file.
constexpr const char* kUsual = R"({
  "train_batch_size": 48, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-7,
                                            "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-6, "warmup_max_lr": 2e-4,
                "warmup_num_steps": 30, "total_num_steps": 200, "warmup_type": "linear"}},
  "bf16": {"enabled": true},
  "gradient_clipping": 1.5,
  "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e6,
    "stage3_param_persistence_threshold": 1e3,
    "offload_optimizer": {"device": "cpu"},
    "offload_param": {"device": "nvme", "nvme_path": "/fast"}}
})";

TEST(DeepSpeed, AUsualFileIsAJob) {
  const auto [job, loop, notices] = apply(kUsual, 3);
  const auto& train = job.train;
  EXPECT_EQ(train.global_batch, 48);
  EXPECT_EQ(train.micro_batch, 4);
  EXPECT_EQ(train.optimizer, "adamw");
  EXPECT_EQ(train.beta1, 0.8);
  EXPECT_EQ(train.beta2, 0.95);
  EXPECT_EQ(train.epsilon, 1e-7);
  EXPECT_EQ(train.weight_decay, 0.1);
  EXPECT_EQ(train.learning_rate, 2e-4);
  EXPECT_EQ(train.warmup_from, 1e-6);
  EXPECT_EQ(train.warmup_steps, 30);
  EXPECT_EQ(train.warmup, "linear");
  EXPECT_EQ(train.warmup_lag, 2);
  EXPECT_EQ(train.schedule, "linear");
  EXPECT_EQ(train.decay_steps, 200);
  EXPECT_EQ(train.precision, "bfloat16");
  EXPECT_EQ(train.clip_norm, 1.5);
  EXPECT_DOUBLE_EQ(job.parallel.bucket_mb, 5e6 * 4 / 1048576);
  EXPECT_EQ(job.zero.level, 3);
  EXPECT_EQ(job.zero.offload_optimizer, "host");
  EXPECT_EQ(job.zero.offload_parameters, "disk");
  EXPECT_EQ(job.zero.offload_path, "/fast");
  EXPECT_EQ(job.zero.keep_below, 1000);
  EXPECT_EQ(loop, (DeepSpeedLoop{true, true, 4, 4}));
  EXPECT_THAT(notices, IsEmpty());
}

TEST(DeepSpeed, WhatIsNotThereOrAutoIsTheJobs) {
  JobConfig job;
  job.train.optimizer = "lamb";
  job.train.learning_rate = 0.25;
  job.train.weight_decay = 0.5;
  job.train.precision = "bfloat16";
  job.train.warmup_steps = 17;
  const JobConfig before = job;
  EXPECT_EQ(apply("{}", 2, job).job, before);
  EXPECT_EQ(apply(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
                      "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
                      "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
                      "optimizer": null, "zero_optimization": {"stage": "auto"}})",
                  2, job)
                .job,
            before);
  const auto train = apply(R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto",
                               "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
                              "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto",
                               "warmup_max_lr": "auto", "warmup_num_steps": "auto"}}})",
                           2, job)
                         .job.train;
  EXPECT_EQ(train.optimizer, "adamw");
  EXPECT_EQ(train.learning_rate, 0.25);
  EXPECT_EQ(train.weight_decay, 0.5);
  EXPECT_EQ(train.warmup_steps, 17);
  EXPECT_EQ(train.warmup, "log");
}

TEST(DeepSpeed, CommentsAreTaken) {
  EXPECT_EQ(train_of("{ // of a step\n \"train_batch_size\": 8 /* all ranks */ }").global_batch, 8);
}

TEST(DeepSpeed, OneBatchSizeFollowsFromTheOthers) {
  const auto sizes = [](const std::string& json, int ranks) {
    const auto applied = apply(json, ranks);
    return std::vector<std::int64_t>{applied.job.train.global_batch, applied.loop.micro_batch,
                                     applied.loop.accumulation};
  };
  EXPECT_THAT(
      sizes(R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})", 3),
      ElementsAre(24, 4, 2));
  EXPECT_THAT(sizes(R"({"train_micro_batch_size_per_gpu": 4})", 3), ElementsAre(12, 4, 1));
  EXPECT_THAT(sizes(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4})", 3),
              ElementsAre(24, 4, 2));
  EXPECT_THAT(sizes(R"({"train_batch_size": 24, "gradient_accumulation_steps": 2})", 3),
              ElementsAre(24, 0, 2));
  // DeepSpeed refuses this. Here nothing has to divide anything.
  EXPECT_THAT(sizes(R"({"train_batch_size": 25, "train_micro_batch_size_per_gpu": 4})", 3),
              ElementsAre(25, 4, 3));
  EXPECT_THAT(sizes(R"({"train_batch_size": 25})", 3), ElementsAre(25, 0, 1));
  EXPECT_EQ(train_of(R"({"train_batch_size": 25})", 3).micro_batch, 0);
}

TEST(DeepSpeed, BatchSizesMustAgreeWithTheRanks) {
  constexpr const char* kAll = R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
                                   "gradient_accumulation_steps": 2})";
  EXPECT_EQ(train_of(kAll, 4).global_batch, 32);
  EXPECT_EQ(train_of(kAll).global_batch, 32);  // of some number of ranks
  EXPECT_THAT(flaw_of(kAll, 3), HasSubstr("ds.json: the batch sizes do not agree"));
  EXPECT_THAT(flaw_of(kAll, 3), HasSubstr("4 × 2 × 3 ranks = 24"));
  EXPECT_THAT(flaw_of(R"({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4,
                           "gradient_accumulation_steps": 2})"),
              HasSubstr("a multiple of 4 × 2"));
  EXPECT_THAT(flaw_of(R"({"train_micro_batch_size_per_gpu": 4})"),
              HasSubstr("needs train_batch_size"));
  EXPECT_THAT(flaw_of(R"({"train_batch_size": 0})"), HasSubstr("at least 1, found 0"));
  EXPECT_THAT(flaw_of(R"({"train_batch_size": 2.5})"), HasSubstr("a whole number"));
}

TEST(DeepSpeed, OptimizersHaveItsDefaults) {
  auto train = train_of(R"({"optimizer": {"type": "Adam"}})");
  EXPECT_EQ(train.optimizer, "adamw");  // adam_w_mode is true unless told otherwise
  EXPECT_EQ(train.learning_rate, 1e-3);
  EXPECT_EQ(train.epsilon, 1e-8);
  EXPECT_EQ(train.weight_decay, 0);
  train = train_of(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})");
  EXPECT_EQ(train.optimizer, "adam");
  train = train_of(R"({"optimizer": {"type": "sgd", "params": {"lr": 0.1}}})");
  EXPECT_EQ(train.optimizer, "sgd");
  EXPECT_EQ(train.momentum, 0);
  EXPECT_EQ(train.learning_rate, 0.1);
  EXPECT_EQ(train_of(R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.8}}})").momentum,
            0.8);
  EXPECT_EQ(train_of(R"({"optimizer": {"type": "LAMB"}})").optimizer, "lamb");
}

TEST(DeepSpeed, OptimizersThatThereAreNotAreRefused) {
  EXPECT_THAT(flaw_of(R"({"optimizer": {"type": "AdanW"}})"),
              HasSubstr("key 'optimizer.type' must be one of Adam, AdamW, SGD, Lamb, found "
                        "\"AdanW\"; did you mean \"AdamW\"?"));
  EXPECT_THAT(flaw_of(R"({"optimizer": {"params": {"lr": 1}}})"), HasSubstr("needs a \"type\""));
  EXPECT_THAT(flaw_of(R"({"optimizer": {"type": "SGD", "params": {"betas": [0, 0]}}})"),
              HasSubstr("'optimizer.params.betas' is unknown"));
  EXPECT_THAT(flaw_of(R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1]}}})"),
              HasSubstr("less than 1"));
  EXPECT_THAT(flaw_of(R"({"optimizer": {"type": "Adam", "params": {"lr": 0}}})"),
              HasSubstr("greater than 0"));
  EXPECT_THAT(flaw_of(R"({"optimizer": {"type": "Adam", "params": {"amsgrad": true}}})", 0,
                      ErrorCode::Unsupported),
              HasSubstr("optimizer.params.amsgrad"));
}

TEST(DeepSpeed, SchedulersHaveItsDefaults) {
  auto train = train_of(R"({"optimizer": {"type": "Adam", "params": {"lr": 0.5}},
                            "scheduler": {"type": "WarmupLR"}})");
  EXPECT_EQ(train.schedule, "constant");
  EXPECT_EQ(train.learning_rate, 0.5);
  EXPECT_EQ(train.warmup, "log");
  EXPECT_EQ(train.warmup_steps, 1000);
  EXPECT_EQ(train.warmup_from, 0);
  train = train_of(R"({"optimizer": {"type": "Adam", "params": {"lr": 0.5}},
                       "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}}})");
  EXPECT_EQ(train.learning_rate, 1e-3);
  train = train_of(R"({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 900,
                       "warmup_num_steps": 1, "warmup_min_ratio": 0.1}},
                       "optimizer": {"type": "Adam", "params": {"lr": 0.5}}})");
  EXPECT_EQ(train.schedule, "cosine");
  EXPECT_EQ(train.warmup_from, 0.05);
  EXPECT_EQ(train.warmup_steps, 2);
  EXPECT_EQ(train.min_learning_rate_ratio, 1e-4);
  EXPECT_EQ(train.decay_steps, 900);
}

TEST(DeepSpeed, SchedulersThatThereAreNotAreRefused) {
  EXPECT_THAT(flaw_of(R"({"scheduler": {"type": "OneCycle"}})"), HasSubstr("WarmupCosineLR"));
  EXPECT_THAT(flaw_of(R"({"scheduler": {"type": "WarmupDecayLR"}})"),
              HasSubstr("needs \"total_num_steps\""));
  EXPECT_THAT(flaw_of(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cos"}}})"),
              HasSubstr("must be one of log, linear"));
}

TEST(DeepSpeed, Float16HasItsScaler) {
  auto train = train_of(R"({"fp16": {"enabled": true}})");
  EXPECT_EQ(train.precision, "float16");
  EXPECT_EQ(train.loss_scale, 0);
  EXPECT_EQ(train.loss_scale_initial, 65536);
  EXPECT_EQ(train.loss_scale_window, 1000);
  EXPECT_EQ(train.loss_scale_hysteresis, 2);
  EXPECT_EQ(train.loss_scale_min, 1);
  train = train_of(R"({"fp16": {"min_loss_scale": 4, "hysteresis": 3, "loss_scale_window": 50,
                       "initial_scale_power": 12, "enabled": true}})");
  EXPECT_EQ(train.loss_scale_initial, 4096);
  EXPECT_EQ(train.loss_scale_window, 50);
  EXPECT_EQ(train.loss_scale_hysteresis, 3);
  EXPECT_EQ(train.loss_scale_min, 4);
  EXPECT_EQ(train_of(R"({"fp16": {"enabled": true, "loss_scale": 128}})").loss_scale, 128);
  EXPECT_EQ(train_of(R"({"fp16": {"enabled": false}})").precision, "float32");
  EXPECT_EQ(
      train_of(R"({"torch_autocast": {"enabled": true, "dtype": "torch.float16"}})").precision,
      "float16");
  EXPECT_THAT(flaw_of(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
              HasSubstr("take one of them"));
  EXPECT_THAT(flaw_of(R"({"fp16": {"min_loss_scale": 0}})"), HasSubstr("greater than 0"));
  EXPECT_THAT(flaw_of(R"({"fp16": {"enabled": "yes"}})"),
              HasSubstr("key 'fp16.enabled' must be true or false, found \"yes\""));
}

TEST(DeepSpeed, UnknownKeysAreErrorsWithTheNearestName) {
  EXPECT_THAT(flaw_of(R"({"zero_optimisation": {}})"),
              HasSubstr("ds.json: key 'zero_optimisation' is unknown; did you mean "
                        "'zero_optimization'?"));
  EXPECT_THAT(flaw_of(R"({"zero_optimization": {"offload_optimizer": {"divice": "cpu"}}})"),
              HasSubstr("key 'zero_optimization.offload_optimizer.divice' is unknown; did you mean "
                        "'device'?"));
}

TEST(DeepSpeed, KeysWithoutEffectAreNamedOnce) {
  const auto notices = apply(R"({"wall_clock_breakdown": false, "steps_per_print": 10,
                                "zero_optimization": {"overlap_comm": true},
                                "amp": {"enabled": false}})")
                           .notices;
  EXPECT_THAT(notices, ElementsAre(HasSubstr("ds.json: key 'zero_optimization.overlap_comm' has no "
                                             "effect: communication"),
                                   HasSubstr("key 'steps_per_print' has no effect")));
}

TEST(DeepSpeed, WhatWouldTrainSomethingElseIsRefused) {
  for (const char* json :
       {R"({"amp": {"enabled": true}})", R"({"gradient_allreduce_op": "sum"})",
        R"({"sparse_attention": {"mode": "fixed"}})", R"({"elasticity": {"enabled": true}})",
        R"({"managed_gradient_accumulation": false})",
        R"({"zero_optimization": {"zero_quantized_weights": true}})"}) {
    EXPECT_THAT(flaw_of(json, 0, ErrorCode::Unsupported), HasSubstr("ds.json: key '"));
  }
}

TEST(DeepSpeed, OffloadsMustMakeSense) {
  EXPECT_THAT(flaw_of(R"({"zero_optimization": {"stage": 4}})"), HasSubstr("0, 1, 2 or 3"));
  EXPECT_THAT(flaw_of(R"({"zero_optimization": {"offload_param": {"device": "nvme"}}})"),
              HasSubstr("needs \"nvme_path\""));
  EXPECT_THAT(flaw_of(R"({"zero_optimization": {
                           "offload_param": {"device": "nvme", "nvme_path": "/a"},
                           "offload_optimizer": {"device": "nvme", "nvme_path": "/b"}}})"),
              HasSubstr("one folder serves both"));
  EXPECT_EQ(apply(R"({"zero_optimization": {"cpu_offload": true}})").job.zero.offload_optimizer,
            "host");
}

TEST(DeepSpeed, CheckpointingOfActivationsIsRecomputation) {
  EXPECT_EQ(train_of(R"({"activation_checkpointing": {"partition_activations": true}})").recompute,
            "all");
  EXPECT_EQ(train_of(R"({"activation_checkpointing": {"number_checkpoints": 4}})").recompute,
            "all");
  EXPECT_EQ(train_of(R"({"activation_checkpointing": {"cpu_checkpointing": false}})").recompute,
            "none");
  JobConfig job;
  job.train.recompute = "sqrt";
  EXPECT_EQ(apply(R"({"activation_checkpointing": {"partition_activations": true}})", 1, job)
                .job.train.recompute,
            "sqrt");
}

TEST(DeepSpeed, TensorboardGetsAFolder) {
  EXPECT_EQ(apply(R"({"tensorboard": {"enabled": true, "output_path": "out", "job_name": "a"}})")
                .job.monitor.tensorboard_dir,
            "out/a");
  EXPECT_EQ(apply(R"({"tensorboard": {"output_path": "out"}})").job.monitor.tensorboard_dir, "");
}

TEST(DeepSpeed, WhatIsNoFileOrNoObjectIsAnError) {
  EXPECT_THAT(flaw_of("{,}"), HasSubstr("ds.json: is no JSON"));
  const std::string deep(3'000'000, '[');
  EXPECT_THAT(flaw_of("{\"fp16\": " + deep + std::string(deep.size(), ']') + "}"),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(flaw_of("[1]"), HasSubstr("must be an object, found [1]"));
  EXPECT_THAT(flaw_of(R"({"fp16": 3})"), HasSubstr("key 'fp16' must be an object, found 3"));
  JobConfig job;
  EXPECT_THROW(apply_deepspeed(std::filesystem::path("/no/such.json"), 1, job), Error);
  EXPECT_THROW(apply_deepspeed(std::filesystem::path("/tmp"), 1, job), Error);
}

TEST(DeepSpeed, TheJobThatComesOfItTravels) {
  const auto job = apply(R"({"fp16": {"enabled": true, "min_loss_scale": 2}, "train_batch_size": 6,
                             "scheduler": {"type": "WarmupLR"}})")
                       .job;
  EXPECT_EQ(parse_job(to_toml(job), "sent"), job);
}

}  // namespace
}  // namespace bimetal::job
