#pragma once
// The table of golden trainings: models × ranks. A new way of training gets rows here, or a column
// in exact_test.cpp.

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "golden/training_run.h"

namespace bimetal::golden {

/// The training, whichever ranks do it.
struct Learnt {
  std::string name;
  TrainingPlan plan;
  /// Whether there are rows with shards, too: not where the optimizer needs whole parameters, and
  /// where another row says as much.
  bool in_shards = true;
};

/// The ranks that train.
struct Ranks {
  std::string name;
  std::vector<std::vector<std::int64_t>> shares;  ///< as TrainingPlan has them
  std::vector<double> shards = {1};
  std::int64_t micro_batch = 1000;
  bool in_shards = true;
};

void PrintTo(const Learnt& shown, std::ostream* out);
void PrintTo(const Ranks& shown, std::ostream* out);

/// Every model and optimizer, and every technique that must not show in the result.
const std::vector<Learnt>& learnt();
/// Trainings of models whose tensors can be in parts.
const std::vector<Learnt>& learnt_in_parts();
/// Those whose states or parameters are kept elsewhere, or twice: of shards alone.
const std::vector<Learnt>& learnt_offloaded();
/// Those of level 3 whose updates are a part of backward.
const std::vector<Learnt>& learnt_updated_in_backward();
const std::vector<Ranks>& ranks();

enum class Cuts {
  early,  ///< all pieces but the last have one unit
  late,   ///< all but the first
};

/// TrainingPlan::cuts into as many pieces as its stages and chunks are.
std::vector<std::int64_t> cuts_of(const TrainingPlan& plan, Cuts cuts);

/// One device's result of it, computed once for each name.
const TrainingResult& alone(const Learnt& what);

/// That it has come to the same, to 1e-12: parameters and the loss of each step.
void expect_same(const TrainingResult& result, const TrainingResult& expected);

/// The name of a row of training and ranks: both names.
template <typename Row>
std::string row_name(const ::testing::TestParamInfo<Row>& info) {
  return std::get<0>(info.param).name + "By" + std::get<1>(info.param).name;
}

using ShardRow = std::tuple<Learnt, Ranks, int /* ZeRO's level */>;

/// Likewise, with the level.
std::string shard_row_name(const ::testing::TestParamInfo<ShardRow>& info);

}  // namespace bimetal::golden
