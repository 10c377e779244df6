#include "bimetal/fabric_bench/bench_options.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bimetal/base/error.h"

namespace bimetal::fabric_bench {
namespace {

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
