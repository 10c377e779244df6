#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/job/worker_spec.h"
#include "support/errors.h"

namespace bimetal::job {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::vector<std::string>& settings,
                    const std::vector<std::string>& workers = {}) {
  const auto job = parse_job("", "test", settings);
  std::vector<WorkerSpec> specs;
  for (const auto& worker : workers) specs.push_back(parse_worker_spec(worker));
  return text_of(ErrorCode::Unsupported, [&] { require_possible(job, specs); });
}

TEST(Combinations, WhatWorksIsNotRefused) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({"train.precision=float16", "train.clip_norm=1"}), "");
  EXPECT_EQ(refusal({"train.precision=tf32", "parallel.mode=server"}), "");
  EXPECT_EQ(refusal({"train.precision=bfloat16", "parallel.mode=server", "train.clip_norm=1",
                     "compression.gradients=int8"}),
            "");
  EXPECT_EQ(refusal({"parallel.mode=server", "servers.count=3", "train.clip_value=1"}), "");
  EXPECT_EQ(refusal({"train.precision=auto", "train.dtype=float64"}), "");
}

TEST(Combinations, WhatCannotWorkIsRefusedWithTheReason) {
  EXPECT_THAT(refusal({"train.precision=bfloat16", "train.dtype=float64"}), HasSubstr("float64"));
  EXPECT_THAT(refusal({"train.precision=tf32", "train.dtype=float64"}), HasSubstr("float64"));
  EXPECT_THAT(refusal({"train.precision=float16", "parallel.mode=server"}),
              HasSubstr("parallel.mode"));
  EXPECT_THAT(refusal({"train.precision=float16", "compression.gradients=topk"}),
              HasSubstr("compression.gradients"));
  EXPECT_THAT(refusal({"train.clip_norm=1", "parallel.mode=server", "servers.count=2"}),
              HasSubstr("servers.count = 1"));
  EXPECT_THAT(refusal({"train.clip_value=1", "compression.gradients=topk"}),
              HasSubstr("train.momentum"));
  EXPECT_EQ(refusal({"model.norm=batch"}), "");
  EXPECT_THAT(refusal({"model.norm=batch", "parallel.mode=server"}), HasSubstr("take \"group\""));
  EXPECT_THAT(refusal({"model.norm=batch", "model.norm_group=600"}), HasSubstr("global_batch"));
}

TEST(Combinations, WhatAWorkerOffloadsIsItsOwn) {
  const auto job = parse_job("", "test", {"zero.offload_optimizer=disk", "zero.offload_path=/a"});
  const auto own = as_worker_has_it(
      job, parse_worker_spec("cpu:offload_optimizer=none,offload_parameters=host"));
  EXPECT_EQ(own.zero.offload_optimizer, "none");
  EXPECT_EQ(own.zero.offload_parameters, "host");
  EXPECT_EQ(own.zero.offload_path, "/a");
  EXPECT_EQ(as_worker_has_it(job, parse_worker_spec("cpu")).zero, job.zero);

  const std::vector<std::string> level_2 = {"zero.level=2", "train.optimizer=adam"};
  EXPECT_EQ(refusal(level_2, {"cpu:offload_optimizer=disk,offload_path=/a", "cpu"}), "");
  EXPECT_THAT(refusal(level_2, {"cpu", "cpu:offload_optimizer=disk"}), HasSubstr("offload_path"));
  EXPECT_THAT(refusal(level_2, {"cpu:offload_parameters=host"}), HasSubstr("zero.level = 3"));
}

TEST(Combinations, UnitsInPythonAreCompiledAndNoOthers) {
  EXPECT_EQ(refusal({"model.python=a:b", "model.compile=true", "zero.level=3", "mesh.stages=2"}),
            "");
  EXPECT_THAT(refusal({"model.compile=true"}), HasSubstr("set model.python"));
  for (const char* const schedule : {"mesh.schedule=zero_bubble", "mesh.schedule=auto"}) {
    EXPECT_THAT(refusal({"model.python=a:b", "model.compile=true", "mesh.stages=auto", schedule}),
                HasSubstr("take \"1f1b\""));
  }
  EXPECT_EQ(refusal({"model.python=a:b", "model.compile=true", "mesh.schedule=zero_bubble"}), "")
      << "nothing is cut";
}

TEST(Combinations, GraphsAreForWholeReplicas) {
  EXPECT_EQ(refusal({"train.graphs=true", "train.clip_norm=1", "train.precision=float16",
                     "model.norm=batch", "train.micro_batch=16"},
                    {"cpu", "auto"}),
            "");
  EXPECT_EQ(refusal({"train.graphs=true", "compression.gradients=int8", "mesh.replicas=2"}), "");
  for (const char* const other : {"zero.level=1", "mesh.stages=2", "mesh.stages=auto",
                                  "mesh.tensor=2", "mesh.tensor=auto", "parallel.mode=server"}) {
    EXPECT_THAT(refusal({"train.graphs=true", other}), HasSubstr("train.graphs")) << other;
  }
  EXPECT_THAT(refusal({"train.graphs=true", "train.recompute=auto"}), HasSubstr("recompute"));
  EXPECT_THAT(refusal({"train.graphs=true", "model.dropout=0.1"}), HasSubstr("model.dropout = 0"));
  EXPECT_THAT(refusal({"train.graphs=true", "model.python=a:b"}), HasSubstr("model.compile"));
}

TEST(Combinations, ValidationHasItsPlace) {
  EXPECT_EQ(refusal({"data.validation=0.1", "checkpoint.keep_best=true"}), "");
  EXPECT_EQ(refusal({"model.python=a:b", "data.validation=0.1"}), "");
  EXPECT_THAT(refusal({"data.validation=0.1", "parallel.mode=server"}), HasSubstr("all_reduce"));
  EXPECT_THAT(refusal({"checkpoint.keep_best=true"}), HasSubstr("set data.validation"));
  EXPECT_THAT(refusal({"checkpoint.keep_best=true", "data.validation=0.1", "train.evaluate=false"}),
              HasSubstr("train.evaluate"));
}

TEST(Combinations, MeshesDoNotGoWithEverything) {
  EXPECT_EQ(refusal({"mesh.stages=1", "mesh.schedule=gpipe", "parallel.mode=server"}), "");
  EXPECT_EQ(refusal({"mesh.stages=2", "zero.level=1", "train.clip_norm=1", "train.recompute=all"}),
            "");
  EXPECT_THAT(refusal({"mesh.stages=2", "parallel.mode=server"}), HasSubstr("parallel.mode"));
  EXPECT_EQ(refusal({"mesh.stages=2", "zero.level=2", "mesh.schedule=zero_bubble"}), "");
  EXPECT_EQ(refusal({"mesh.stages=2", "zero.level=1", "mesh.schedule=interleaved"}), "");
  EXPECT_THAT(refusal({"mesh.stages=2", "zero.level=2", "mesh.schedule=interleaved"}),
              HasSubstr("take \"1f1b\", or zero.level = 1"));
  EXPECT_EQ(refusal({"mesh.stages=2", "zero.level=3", "mesh.schedule=zero_bubble"}), "");
  EXPECT_THAT(refusal({"mesh.stages=2", "zero.level=3", "mesh.schedule=interleaved"}),
              HasSubstr("zero.level = 1"));
  EXPECT_THAT(refusal({"mesh.stages=2", "compression.gradients=int8"}), HasSubstr("compression"));
  EXPECT_THAT(refusal({"compression.activations=int8"}), HasSubstr("set mesh.stages"));
  EXPECT_EQ(refusal({"compression.activations=int8", "mesh.stages=2", "zero.level=2",
                     "mesh.schedule=zero_bubble", "train.precision=float16"}),
            "");
  EXPECT_EQ(refusal({"compression.activations=int8", "mesh.stages=2", "mesh.replicas=[1, 2]"}), "");
  EXPECT_EQ(refusal({"compression.activations=bfloat16", "mesh=auto", "train.dtype=float64"}), "");
  EXPECT_EQ(refusal({"mesh.stages=2", "train.recompute=auto"}), "");
  EXPECT_THAT(refusal({"mesh.stages=2", "mesh.tensor=2", "train.recompute=auto"}),
              HasSubstr("recompute"));
  EXPECT_THAT(refusal({"mesh.stages=2", "train.deterministic=true"}), HasSubstr("mesh.cuts"));
  EXPECT_EQ(refusal({"mesh.stages=2", "mesh.micro_batches=32", "train.global_batch=32"}), "");
  EXPECT_EQ(refusal({"mesh.micro_batches=33", "train.global_batch=32"}), "") << "nothing is cut";
  for (const char* const stages : {"mesh.stages=2", "mesh.stages=auto"}) {
    EXPECT_THAT(refusal({stages, "mesh.micro_batches=33", "train.global_batch=32"}),
                HasSubstr("take train.global_batch at most"));
  }
  EXPECT_EQ(refusal({"mesh.stages=auto", "zero.level=2"}), "");
  EXPECT_THAT(refusal({"mesh.stages=auto", "parallel.mode=server"}), HasSubstr("parallel.mode"));
  EXPECT_THAT(refusal({"mesh.stages=auto", "mesh.cuts=[2]"}), HasSubstr("leave them out"));
  EXPECT_EQ(refusal({"mesh.stages=auto", "mesh.schedule=interleaved", "zero.level=1"}), "");
  EXPECT_THAT(refusal({"mesh.stages=auto", "mesh.schedule=interleaved", "zero.level=2"}),
              HasSubstr("zero.level = 1"));
  EXPECT_EQ(refusal({"mesh.stages=auto", "mesh.schedule=auto"}), "");
  for (const char* const mesh : {"mesh.stages=auto", "mesh.tensor=auto", "mesh=auto"}) {
    EXPECT_THAT(refusal({mesh, "parallel.balance=[3, 1]"}), HasSubstr("parallel.balance"));
    EXPECT_EQ(refusal({mesh, "parallel.balance=equal"}), "");
  }
  EXPECT_THAT(refusal({"mesh.stages=2", "mesh.schedule=auto"}), HasSubstr("name one"));
}

TEST(Combinations, TensorsInPartsDoNotGoWithEverything) {
  EXPECT_EQ(refusal({"mesh.tensor=2", "train.optimizer=adamw", "train.clip_norm=1",
                     "train.precision=bfloat16", "mesh.tensor_weights=speed"}),
            "");
  EXPECT_THAT(refusal({"mesh.tensor=2", "parallel.mode=server"}), HasSubstr("parallel.mode"));
  EXPECT_EQ(refusal({"mesh.tensor=2", "zero.level=1", "mesh.tensor_weights=speed"}), "");
  EXPECT_EQ(refusal({"mesh.tensor=2", "zero.level=2"}), "");
  EXPECT_THAT(refusal({"mesh.tensor=2", "zero.level=2", "mesh.tensor_weights=speed"}),
              HasSubstr("take \"equal\" or numbers"));
  EXPECT_EQ(
      refusal({"mesh.tensor=2", "mesh.stages=2", "zero.level=2", "mesh.tensor_weights=speed"}), "");
  EXPECT_EQ(refusal({"mesh.tensor=2", "zero.level=3"}), "");
  EXPECT_EQ(refusal({"mesh.tensor=2", "mesh.stages=2", "zero.level=3"}), "");
  EXPECT_THAT(refusal({"mesh.tensor=2", "zero.level=1", "zero.copies=2", "checkpoint.dir=a"}),
              HasSubstr("mesh.tensor"));
  EXPECT_EQ(refusal({"mesh.tensor=2", "mesh.stages=2", "train.clip_norm=1"}), "");
  EXPECT_EQ(refusal({"mesh.tensor=2", "mesh.stages=2", "zero.level=1", "train.clip_norm=1"}), "");
  EXPECT_EQ(refusal({"mesh.tensor=2", "mesh.stages=auto"}), "");
  EXPECT_EQ(refusal({"mesh.tensor=auto", "zero.level=1"}), "");
  EXPECT_EQ(refusal({"mesh=auto", "zero.level=1"}), "");
  EXPECT_EQ(refusal({"mesh.tensor=2", "mesh.stages=auto", "zero.level=1"}), "");
  EXPECT_THAT(refusal({"mesh=auto", "parallel.mode=server"}), HasSubstr("parallel.mode"));
  EXPECT_THAT(refusal({"mesh.tensor=auto", "parallel.mode=server"}), HasSubstr("parallel.mode"));
  EXPECT_THAT(refusal({"mesh.tensor=auto", "train.deterministic=true"}),
              HasSubstr("give mesh.tensor a number"));
  EXPECT_THAT(refusal({"mesh.tensor=auto", "mesh.stages=2", "mesh.cuts=[2]"}),
              HasSubstr("leave them out"));
  EXPECT_EQ(refusal({"mesh.tensor=[1, 2]", "mesh.stages=2", "zero.level=2", "train.clip_norm=1"}),
            "");
  EXPECT_EQ(refusal({"mesh.tensor=[1, 2]", "mesh.stages=2", "mesh.replicas=[2, 1]"}), "");
  EXPECT_EQ(refusal({"mesh.tensor=2", "mesh.stages=2", "mesh.replicas=[2, 1]"}), "");
  const auto interleaved = [](const char* replicas) {
    return refusal({"mesh.tensor=[1, 2]", "mesh.stages=2", "mesh.schedule=interleaved", replicas});
  };
  EXPECT_EQ(interleaved("mesh.replicas=1"), "");
  EXPECT_THAT(interleaved("mesh.replicas=2"), HasSubstr("take \"1f1b\", or mesh.replicas = 1"));
  EXPECT_THAT(interleaved("mesh.replicas=[2, 2]"), HasSubstr("or mesh.replicas = 1"));
  EXPECT_THAT(refusal({"mesh.tensor=[1, 2]", "mesh.stages=auto"}), HasSubstr("or mesh.tensor one"));
  EXPECT_THAT(refusal({"mesh.tensor=[1, 2]", "mesh.stages=2", "mesh.sequence_parallel=true"}),
              HasSubstr("give mesh.tensor one number"));
  EXPECT_THAT(refusal({"mesh.tensor=[1, 2]", "mesh.stages=2", "compression.gradients=int8"}),
              HasSubstr("compression"));
  EXPECT_THAT(refusal({"mesh.tensor=2", "train.optimizer=lamb"}), HasSubstr("lamb"));
  EXPECT_THAT(refusal({"mesh.tensor=2", "compression.gradients=int8"}), HasSubstr("compression"));
  EXPECT_THAT(refusal({"mesh.tensor=2", "parallel.exact=relaxed"}), HasSubstr("strict"));
  EXPECT_EQ(refusal({"mesh.tensor=2", "mesh.sequence_parallel=true", "mesh.stages=2",
                     "train.recompute=all", "data.block=2"}),
            "");
  EXPECT_THAT(refusal({"mesh.sequence_parallel=true"}), HasSubstr("set mesh.tensor"));
  EXPECT_EQ(refusal({"mesh.tensor=auto", "mesh.sequence_parallel=true"}), "");
  EXPECT_THAT(refusal({"mesh.tensor=2", "mesh.sequence_parallel=true", "zero.level=1"}),
              HasSubstr("does not go with zero.level"));
  EXPECT_THAT(refusal({"mesh.tensor=3", "mesh.sequence_parallel=true", "data.block=2"}),
              HasSubstr("at least mesh.tensor"));
  EXPECT_THAT(refusal({"mesh.tensor=2"}, {"cpu", "cpu:precision=bfloat16"}),
              HasSubstr("train.precision"));
  EXPECT_EQ(refusal({"mesh.tensor=[1, 2]", "mesh.stages=2"}, {"cpu", "cpu:precision=bfloat16"}), "")
      << "the two of stage 1 alone have to be alike, which they see for themselves";
  const std::vector<WorkerSpec> other = {parse_worker_spec("cpu:precision=bfloat16")};
  EXPECT_TRUE(is_possible(parse_job("", "test", {"mesh.tensor=2"})));
  EXPECT_FALSE(is_possible(parse_job("", "test", {"mesh.tensor=2"}), other));
}

TEST(Combinations, ShardsDoNotGoWithEverything) {
  EXPECT_THAT(refusal({"zero.level=1", "parallel.mode=server"}), HasSubstr("parallel.mode"));
  EXPECT_THAT(refusal({"zero.level=2", "compression.gradients=int8"}),
              HasSubstr("compression.gradients"));
  EXPECT_THAT(refusal({"zero.level=3", "train.optimizer=lamb"}), HasSubstr("whole tensors"));
  EXPECT_EQ(refusal({"zero.level=3", "train.optimizer=adamw", "train.decay_on=matrices",
                     "train.clip_norm=1", "train.precision=float16"}),
            "");
}

TEST(Combinations, CopiesAreOfShardsInMemory) {
  const auto with = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"zero.copies=2", "train.optimizer=adam"});
    return settings;
  };
  EXPECT_EQ(refusal(with({"zero.level=1", "checkpoint.dir=runs/a"})), "");
  EXPECT_THAT(refusal(with({"checkpoint.dir=runs/a"})), HasSubstr("zero.level of at least 1"));
  EXPECT_THAT(refusal(with({"zero.level=3"})), HasSubstr("checkpoint.dir"));
  EXPECT_THAT(refusal(with({"zero.level=1", "checkpoint.dir=a", "zero.offload_optimizer=host"})),
              HasSubstr("offload_optimizer"));
  EXPECT_THAT(refusal(with({"zero.level=1", "checkpoint.dir=a", "mesh.stages=2"})),
              HasSubstr("mesh.stages"));
}

TEST(Combinations, UpdatesInBackwardNeedNothingOfTheWholeStep) {
  const auto with = [](std::vector<std::string> settings) {
    settings.push_back("zero.update=backward");
    return refusal(settings);
  };
  EXPECT_EQ(with({"zero.level=3", "train.precision=bfloat16", "train.recompute=all"}), "");
  EXPECT_EQ(with({"zero.level=3", "mesh.tensor=2", "train.optimizer=adam",
                  "zero.offload_parameters=disk", "zero.offload_path=/fast"}),
            "");
  EXPECT_THAT(with({"zero.level=2"}), HasSubstr("zero.level = 3"));
  EXPECT_THAT(with({"zero.level=3", "train.clip_norm=1"}), HasSubstr("clip_norm"));
  EXPECT_THAT(with({"zero.level=3", "train.clip_value=1"}), HasSubstr("clip_value"));
  EXPECT_THAT(with({"zero.level=3", "train.precision=float16"}), HasSubstr("float16"));
  EXPECT_THAT(with({"zero.level=3", "zero.copies=2", "checkpoint.dir=a"}), HasSubstr("copies"));
  EXPECT_THAT(with({"zero.level=3", "mesh.stages=2"}), HasSubstr("mesh.stages"));
  EXPECT_THAT(with({"zero.level=3", "train.recompute=auto"}), HasSubstr("recompute"));
}

TEST(Combinations, OffloadIsOfShardsAndOfAdam) {
  const std::vector<std::string> adam = {"zero.level=1", "train.optimizer=adamw",
                                         "zero.offload_optimizer=host"};
  EXPECT_EQ(refusal(adam), "");
  EXPECT_THAT(refusal({"zero.offload_optimizer=host", "train.optimizer=adam"}),
              HasSubstr("zero.level of at least 1"));
  EXPECT_THAT(refusal({"zero.level=1", "zero.offload_optimizer=host", "train.optimizer=sgd"}),
              HasSubstr("\"adamw\""));
  EXPECT_THAT(refusal({"zero.level=1", "zero.offload_optimizer=disk", "train.optimizer=adamw"}),
              HasSubstr("zero.offload_path"));
  EXPECT_EQ(refusal({"zero.level=1", "zero.offload_optimizer=disk", "train.optimizer=adamw",
                     "zero.offload_path=/fast"}),
            "");
  EXPECT_THAT(refusal({"zero.level=2", "zero.offload_parameters=host", "train.optimizer=adam"}),
              HasSubstr("zero.level = 3"));
  EXPECT_THAT(refusal({"zero.level=3", "zero.offload_parameters=disk", "train.optimizer=adam"}),
              HasSubstr("zero.offload_path"));
  EXPECT_THAT(refusal({"zero.level=3", "zero.offload_parameters=host"}), HasSubstr("\"adamw\""));
  EXPECT_EQ(refusal({"zero.level=3", "zero.offload_parameters=host", "train.optimizer=adam"}), "");
}

TEST(Combinations, WorkersMayHaveAPrecisionOfTheirOwn) {
  EXPECT_THAT(refusal({"parallel.mode=server"}, {"cpu", "cuda:0:precision=float16"}),
              HasSubstr("parallel.mode"));
  EXPECT_EQ(refusal({"parallel.mode=server", "train.precision=float16"},
                    {"cpu:precision=bfloat16", "cpu:precision=float32"}),
            "");
}

}  // namespace
}  // namespace bimetal::job
