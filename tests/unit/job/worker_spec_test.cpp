#include "bimetal/job/worker_spec.h"

#include <gtest/gtest.h>

#include <string>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::job {
namespace {

TEST(WorkerSpec, BareTypeHasDefaults) {
  const WorkerSpec spec = parse_worker_spec("cpu");
  EXPECT_EQ(spec.type, "cpu");
  EXPECT_FALSE(spec.index);
  EXPECT_FALSE(spec.threads);
  EXPECT_EQ(spec.speed, 1.0);
  EXPECT_FALSE(spec.memory_bytes);
}

TEST(WorkerSpec, ReadsEveryItem) {
  const WorkerSpec spec = parse_worker_spec("cuda:1,threads=3,speed=0.25,memory=1.5GiB");
  EXPECT_EQ(spec.type, "cuda");
  EXPECT_EQ(spec.index, 1);
  EXPECT_EQ(spec.threads, 3);
  EXPECT_EQ(spec.speed, 0.25);
  EXPECT_EQ(spec.memory_bytes, 3ull << 29);
}

TEST(WorkerSpec, OptionsMayFollowTheTypeDirectly) {
  EXPECT_EQ(parse_worker_spec("cpu:threads=1,speed=0.25").threads, 1);
  EXPECT_EQ(parse_worker_spec("mps:speed=.5").speed, 0.5);
}

TEST(WorkerSpec, HasAPrecisionOfItsOwn) {
  EXPECT_EQ(parse_worker_spec("cuda:1").precision, "");
  for (const char* text : {"cuda:0,precision=float16", "cuda:0:precision=float16"}) {
    const auto spec = parse_worker_spec(text);
    EXPECT_EQ(spec.index, 0) << text;
    EXPECT_EQ(spec.precision, "float16") << text;
    EXPECT_EQ(to_string(spec), "cuda:0,precision=float16");
  }
  EXPECT_EQ(parse_worker_spec("cpu:threads=2,precision=auto").precision, "auto");
  EXPECT_EQ(parse_worker_spec("cuda:0:precision=tf32").precision, "tf32");
}

TEST(WorkerSpec, OffloadsAsItLikes) {
  const auto text =
      "cpu:threads=2,offload_optimizer=disk,offload_parameters=none,offload_path=/a b";
  const auto spec = parse_worker_spec(text);
  EXPECT_EQ(spec.offload_optimizer, "disk");
  EXPECT_EQ(spec.offload_parameters, "none");
  EXPECT_EQ(spec.offload_path, "/a b");
  EXPECT_EQ(to_string(spec), text);
}

TEST(WorkerSpec, SizesKnowBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_worker_spec("cpu:memory=512MiB").memory_bytes, 512ull << 20);
  EXPECT_EQ(parse_worker_spec("cpu:memory=512MB").memory_bytes, 512'000'000ull);
  EXPECT_EQ(parse_worker_spec("cpu:memory=4gib").memory_bytes, 4ull << 30);
  EXPECT_EQ(parse_worker_spec("cpu:memory=100B").memory_bytes, 100ull);
}

TEST(WorkerSpec, RoundTrip) {
  for (const char* text : {"auto", "cpu", "cuda:0", "cuda:12,speed=0.1",
                           "cpu:threads=2,speed=0.25,memory=2GiB", "mps:memory=1536MiB",
                           "xpu:1,threads=4,memory=3MB", "cpu:memory=12345B", "cpu:memory=160MB"}) {
    EXPECT_EQ(to_string(parse_worker_spec(text)), text);
  }
  EXPECT_EQ(with_device(parse_worker_spec("auto:threads=2,speed=0.5"), "cpu"),
            "cpu:threads=2,speed=0.5");
  EXPECT_EQ(with_device(parse_worker_spec("cuda:1,memory=2GiB"), "cuda:1"), "cuda:1:memory=2GiB");
  EXPECT_EQ(with_device({}, "mps:0"), "mps:0");
  WorkerSpec odd;
  odd.speed = 1.0 / 3.0;
  EXPECT_EQ(parse_worker_spec(to_string(odd)), odd);
}

struct BadSpec {
  std::string text;
  std::string flaw;
};

class BadWorkerSpec : public ::testing::TestWithParam<BadSpec> {};

TEST_P(BadWorkerSpec, NamesTheWrongPartAndTheValidKeys) {
  expect_error(ErrorCode::InvalidArgument,
               {'"' + GetParam().text + '"', GetParam().flaw, "keys: threads, speed, memory"},
               [&] { parse_worker_spec(GetParam().text); });
}

INSTANTIATE_TEST_SUITE_P(
    Texts, BadWorkerSpec,
    ::testing::Values(
        BadSpec{"", "unknown type \"\""}, BadSpec{"gpu", "unknown type \"gpu\""},
        BadSpec{"cpu ", "unknown type"}, BadSpec{"cpu:", "an item is empty"},
        BadSpec{"cpu:threads=1,", "an item is empty"}, BadSpec{"cpu:0", "takes no index"},
        BadSpec{"auto:1", "takes no index"}, BadSpec{"cuda:-1", "no index"},
        BadSpec{"cuda:one", "no index"}, BadSpec{"cuda:99999999999", "no index"},
        BadSpec{"cuda:0,1", "neither"}, BadSpec{"cuda:speed=0.5,0", "neither"},
        BadSpec{"cpu:cores=2", "unknown key \"cores\""}, BadSpec{"cpu:threads=0", "threads=\"0\""},
        BadSpec{"cpu:threads=100000", "whole number from 1 to 1024"},
        BadSpec{"cpu:threads=1.5", "threads=\"1.5\""}, BadSpec{"cpu:threads=", "threads=\"\""},
        BadSpec{"cpu:speed=0", "speed=\"0\""}, BadSpec{"cpu:speed=1.01", "speed=\"1.01\""},
        BadSpec{"cpu:speed=-1", "speed=\"-1\""}, BadSpec{"cpu:speed=nan", "speed=\"nan\""},
        BadSpec{"cpu:speed=0.5x", "speed=\"0.5x\""}, BadSpec{"cpu:memory=2", "memory=\"2\""},
        BadSpec{"cpu:memory=GiB", "memory=\"GiB\""}, BadSpec{"cpu:memory=0GiB", "memory=\"0GiB\""},
        BadSpec{"cpu:memory=-1GiB", "memory=\"-1GiB\""},
        BadSpec{"cpu:memory=99999999TiB", "memory=\"99999999TiB\""},
        BadSpec{"cpu:offload_optimizer=nvme", "none of none, host, disk"},
        BadSpec{"cpu:offload_path=", "offload_path is empty"},
        BadSpec{"cpu:speed=0.5,speed=0.5", "\"speed\" is given twice"}));

}  // namespace
}  // namespace bimetal::job
