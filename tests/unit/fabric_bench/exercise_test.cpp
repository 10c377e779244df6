#include <gtest/gtest.h>

#include <algorithm>

#include "bimetal/base/error.h"
#include "bimetal/fabric_bench/measure.h"
#include "support/thread_ranks.h"

namespace bimetal::fabric_bench {
namespace {

using comm::DType;
using comm::Operation;

constexpr Operation kOperations[] = {
    Operation::all_reduce,     Operation::broadcast,  Operation::reduce,    Operation::all_gather,
    Operation::reduce_scatter, Operation::all_to_all, Operation::send_recv, Operation::barrier};

Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

TEST(Exercise, EveryOperationLeavesWhatItShould) {
  for (const int size : {1, 2, 3, 5}) {
    testing::run_ranks(size, [](int, comm::Group group) {
      for (const auto operation : kOperations) {
        for (const std::size_t bytes : {1, 256, 100'000}) {
          for (const DType dtype : {DType::float32, DType::bfloat16, DType::int8}) {
            Exercise exercise(group, operation, dtype, bytes);
            exercise.fill();
            exercise.run(soon());
            EXPECT_EQ(exercise.fault(), "") << to_string(operation) << " of " << bytes;
          }
        }
      }
    });
  }
}

TEST(Exercise, UnequalPartsLeaveWhatTheyShould) {
  testing::run_ranks(3, [](int, comm::Group group) {
    for (const auto operation : {Operation::all_gather, Operation::reduce_scatter}) {
      for (const std::vector<double>& shards :
           {std::vector<double>{3, 1, 1}, std::vector<double>{0, 2, 1}}) {
        Exercise exercise(group, operation, DType::float32, 100'000, {}, shards);
        exercise.fill();
        exercise.run(soon());
        EXPECT_EQ(exercise.fault(), "") << to_string(operation);
        EXPECT_NEAR(exercise.bus_factor(), shards[0] == 0 ? 1 : 0.8, 1e-4);
      }
    }
  });
}

TEST(Exercise, EveryCompressionLeavesWhatItShould) {
  for (const int size : {1, 2, 3}) {
    testing::run_ranks(size, [](int, comm::Group group) {
      for (int scheme = 1; scheme < 8; ++scheme) {
        const comm::Compression how{.scheme = static_cast<comm::Scheme>(scheme)};
        Exercise exercise(group, Operation::all_reduce, DType::float32, 100'000, how);
        exercise.fill();
        const auto before = exercise.fault();
        EXPECT_EQ(before.empty(), group.size() == 1) << to_string(how.scheme);
        exercise.run(soon());
        EXPECT_EQ(exercise.fault(), "") << to_string(how.scheme);
      }
    });
  }
}

TEST(Exercise, NoticesAResultThatHasNotBeenComputed) {
  testing::run_ranks(3, [](int rank, comm::Group group) {
    for (const auto operation : kOperations) {
      if (operation == Operation::barrier) continue;
      if (operation == Operation::broadcast && rank == 0) continue;  // the root has it already
      if (operation == Operation::reduce && rank != 0) continue;     // has none
      Exercise exercise(group, operation, DType::float32, 4096);
      exercise.fill();
      EXPECT_NE(exercise.fault(), "") << to_string(operation);
    }
  });
}

TEST(Measure, FiguresAreOfTheSlowestRankAndEqualOnAll) {
  std::vector<Measurement> results(3);
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    BenchOptions options;
    options.iterations = 7;
    results[static_cast<std::size_t>(rank)] = measure(group, options, 1000);
  });
  for (const auto& m : results) {
    EXPECT_EQ(m.bytes, 1000u);
    EXPECT_EQ(m.iterations, 7);
    EXPECT_GT(m.least_s, 0);
    EXPECT_LE(m.least_s, m.median_s);
    EXPECT_LE(m.median_s, m.p99_s);
    EXPECT_EQ(m.mean_s, results[0].mean_s);
    EXPECT_DOUBLE_EQ(m.bus_bytes_per_s(), m.algorithm_bytes_per_s() * 4 / 3);
  }
}

BenchOptions parse(std::vector<std::string> words) {
  CLI::App app;
  BenchOptions options;
  add_options(app, options);
  std::ranges::reverse(words);  // as CLI11 takes them
  app.parse(words);
  return options;
}

TEST(BenchOptions, SizesHaveUnits) {
  const auto options = parse({"allreduce", "--min", "2kb", "--max", "64mb", "--factor", "32"});
  EXPECT_EQ(sizes(options), (std::vector<std::size_t>{2048, 65536, 2097152, 67108864}));
}

TEST(BenchOptions, DefaultsGoFrom256BytesTo256MiB) {
  const auto all = sizes(parse({"all_gather"}));
  EXPECT_EQ(all.front(), 256u);
  EXPECT_EQ(all.back(), std::size_t{256} << 20);
}

TEST(BenchOptions, WordsGiveTheSameOptionsAgain) {
  const auto words = to_arguments(parse({"reducescatter", "--min", "1mb", "--max", "1mb", "--dtype",
                                         "bfloat16", "--seconds", "0.25", "--no-verify"}));
  const auto again = parse(words);
  EXPECT_EQ(to_arguments(again), words);
  EXPECT_EQ(again.operation, comm::Operation::reduce_scatter);
  EXPECT_EQ(again.dtype, comm::DType::bfloat16);
  EXPECT_EQ(again.min_bytes, 1u << 20);
  EXPECT_EQ(again.seconds_per_size, 0.25);
  EXPECT_FALSE(again.verify);
  EXPECT_FALSE(again.json);
}

TEST(BenchOptions, CompressionIsAllreducesAlone) {
  const auto options = parse({"allreduce", "--compress", "powersgd", "--rank", "2"});
  EXPECT_EQ(options.compression.scheme, comm::Scheme::powersgd);
  EXPECT_EQ(parse(to_arguments(options)).compression.rank, 2);
  EXPECT_THROW(parse({"allreduce", "--compress", "zip"}), CLI::ParseError);
  EXPECT_THROW(sizes(parse({"broadcast", "--compress", "int8"})), Error);
  EXPECT_THROW(sizes(parse({"allreduce", "--compress", "int8", "--dtype", "int32"})), Error);
  EXPECT_THROW(sizes(parse({"allreduce", "--compress", "topk", "--density", "2"})), Error);
}

TEST(BenchOptions, ShardsAreOfOperationsWithParts) {
  const auto options = parse({"allgather", "--shards", "3,1,0.5"});
  EXPECT_EQ(options.shards, (std::vector<double>{3, 1, 0.5}));
  EXPECT_EQ(parse(to_arguments(options)).shards, options.shards);
  EXPECT_THROW(parse({"allgather", "--shards", "3,-1"}), CLI::ParseError);
  EXPECT_THROW(sizes(parse({"allreduce", "--shards", "3,1"})), Error);
}

TEST(BenchOptions, WhatMakesNoSenseIsRefused) {
  EXPECT_THROW(parse({}), CLI::ParseError);
  EXPECT_THROW(parse({"allreduce", "--dtype", "float"}), CLI::ParseError);
  EXPECT_THROW(parse({"allreduce", "--ranks", "0"}), CLI::ParseError);
  EXPECT_THROW(parse({"everything"}), CLI::ParseError);
  EXPECT_THROW(sizes(parse({"allreduce", "--min", "2mb", "--max", "1mb"})), Error);
  EXPECT_THROW(sizes(parse({"allreduce", "--factor", "1"})), Error);
}

}  // namespace
}  // namespace bimetal::fabric_bench
