// Training by way of parameter servers. In sync, and in bounded with a staleness of 0, it is the
// training that one device would have done, whatever the workers do.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/compress/dense_reduction.h"
#include "golden/server_job.h"
#include "golden/training_run.h"

namespace bimetal::golden {
namespace {

const ServerCase exact_cases[] = {
    {"OneWorkerOneServer", {0}, {1}},
    {"TwoUnequalWorkersTwoServers", {300, 100}, {1, 1}},
    {"ThreeUnequalWorkersTwoUnequalServersAdam",
     {300, 100, 40},
     {3, 1},
     Consistency::sync,
     0,
     true},
    {"BoundedByZero", {300, 100, 40}, {1, 1}, Consistency::bounded, 0, false},
    {"AWorkerIsLostInTheMiddleOfALease", {300, 100}, {1, 1}, Consistency::sync, 0, true, 3},
    {.name = "Encrypted",
     .rates = {300, 100},
     .servers = {1, 1},
     .encryption = net::Encryption::on,
     .ring_bytes = 0},
    {"OneWorkerAsync", {0}, {1, 1}, Consistency::async, 0, false},
    {.name = "OverTheConnectionAlone", .rates = {300, 100}, .servers = {1, 1}, .ring_bytes = 0},
    {.name = "TinyRings", .rates = {300, 100, 40}, .servers = {1, 1}, .ring_bytes = 16384},
    {.name = "ForwardBeginsEarly",
     .rates = {300, 100, 40},
     .servers = {1, 1},
     .adam = true,
     .overlaps = true},
    {.name = "ForwardBeginsEarlyAndAWorkerIsLost",
     .rates = {300, 100},
     .servers = {2, 1},
     .lost_after = 3,
     .overlaps = true},
    {.name = "InSyncNothingIsFetchedAhead",
     .rates = {300, 100},
     .servers = {1, 1},
     .overlaps = true,
     .prefetch = Prefetch::on},
    {.name = "ClippedByValueTwoServers",
     .rates = {300, 100, 40},
     .servers = {3, 1},
     .limits = {.value = 0.01}},
    {.name = "ForwardBeginsEarlyAndIsRecomputed",
     .rates = {300, 100, 40},
     .servers = {1, 1},
     .overlaps = true,
     .recompute = 1},
};

// By models whose parts are used twice, and that draw.
const ServerCase language_cases[] = {
    {.name = "OneWorker", .rates = {300}, .servers = {1}},
    {.name = "TwoUnequalWorkers", .rates = {300, 100}, .servers = {2, 1}, .overlaps = true},
    {.name = "TwoUnequalWorkersRecompute",
     .rates = {300, 100},
     .servers = {2, 1},
     .overlaps = true,
     .recompute = 1},
    {.name = "ThreeWorkersOneIsLost", .rates = {300, 100, 100}, .servers = {1}, .lost_after = 0},
    {.name = "BoundedByZero",
     .rates = {300, 100},
     .servers = {1, 1},
     .consistency = Consistency::bounded},
};

struct Row {
  std::string what;
  TrainingPlan learnt;  ///< which model
  ServerCase by;
};

void PrintTo(const Row& shown, std::ostream* out) {
  *out << shown.what << " by " << shown.by.name;
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const auto& by : exact_cases) all.push_back({"Cnn", {}, by});
  for (const auto& by : language_cases) {
    all.push_back({"TokensTied", {.learns = Learns::tokens}, by});
    all.push_back({"Gpt2", {.learns = Learns::gpt2, .dropout = 0.1}, by});
    all.push_back({"Llama", {.learns = Learns::llama, .dropout = 0.1}, by});
  }
  return all;
}

class ByServers : public ::testing::TestWithParam<Row> {};

TEST_P(ByServers, TrainsAsOneDevice) {
  const auto& by = GetParam().by;
  const auto task = make_task(GetParam().learnt);
  const auto alone = train_plainly(*task, one_device(by));
  ServerJob job(by, *task);
  job.run();
  EXPECT_EQ(job.steps(), job_steps);
  // A lone asynchronous worker scales the learning rate of an epoch's short last step.
  if (by.consistency == Consistency::async) return;
  EXPECT_LE(largest_difference(job.parameters(), alone.parameters), 1e-12);
  EXPECT_EQ(job.repeated() > 0, by.lost_after >= 0);
  std::int64_t samples = 0;
  int without_updates = 0;
  for (const auto& worker : job.figures()) {
    samples += worker.samples;
    EXPECT_EQ(worker.staleness_max, 0);
    without_updates += worker.updates == 0;
  }
  EXPECT_EQ(without_updates, by.lost_after == 0 ? 1 : 0);
  EXPECT_EQ(samples, epochs * sample_count);
}

INSTANTIATE_TEST_SUITE_P(Rows, ByServers, ::testing::ValuesIn(rows()), [](const auto& info) {
  return info.param.what + "By" + info.param.by.name;
});

TEST(ServerTraining, TensorsOfOneHostGoThroughMemory) {
  const auto data = ImageTask();
  ServerJob connected({.name = "none", .rates = {300}, .servers = {1}, .ring_bytes = 0}, data);
  ServerJob shared({.name = "memory", .rates = {300}, .servers = {1}}, data);
  connected.run();
  shared.run();
  EXPECT_LT(shared.bytes_sent() * 10, connected.bytes_sent());
  EXPECT_LE(largest_difference(shared.parameters(), connected.parameters()), 1e-12);
}

/// The parameters as a worker sees them, piece by piece.
Rounding pulled_by(comm::Scheme scheme, const ShardPlan& plan) {
  return [scheme, plan](const std::vector<torch::Tensor>& parameters) {
    for (const auto& piece : plan.pieces) {
      auto* const first = parameters[piece.tensor].data_ptr<float>() + piece.offset;
      const std::span values(first, static_cast<std::size_t>(piece.count));
      std::vector<std::byte> encoded(comm::encoded_bytes(scheme, values.size()));
      comm::encode(scheme, values, encoded);
      comm::decode(scheme, encoded, values);
    }
  };
}

// Workers compute with rounded parameters, servers keep and change exact ones: so does one device
// that rounds a copy for each gradient. One worker: how steps are cut into leases would change the
// order of sums. Half of the distance, since a sum rounded otherwise may turn a parameter that lies
// between two short values to the other one, which 36 steps make visible.
TEST(ServerTraining, ShortenedPullsRoundForTheGradientAlone) {
  const auto data = ImageTask(torch::kFloat32);
  const ServerCase whole{
      .name = "none", .rates = {0}, .servers = {1, 1}, .dtype = torch::kFloat32, .ring_bytes = 0};
  const auto exact = train_plainly(data, one_device(whole)).parameters;
  ServerJob plain(whole, data);
  plain.run();
  for (const auto scheme : {comm::Scheme::float16, comm::Scheme::bfloat16, comm::Scheme::int8}) {
    ServerJob job({.name = std::string(comm::to_string(scheme)),
                   .rates = {0},
                   .servers = {1, 1},
                   .overlaps = scheme == comm::Scheme::int8,
                   .pull = scheme,
                   .dtype = torch::kFloat32,
                   .ring_bytes = 0},
                  data);
    job.run();
    auto rounding = one_device(whole);
    rounding.round = pulled_by(scheme, job.plan());
    const auto rounded = train_plainly(data, rounding).parameters;
    const auto far = largest_difference(rounded, exact);
    const auto near = largest_difference(job.parameters(), rounded);
    EXPECT_GT(far, 0);
    EXPECT_LT(near, 0.5 * far) << comm::to_string(scheme);
    EXPECT_LT(loss_with(job.parameters(), data), 1.05 * loss_with(exact, data));
    EXPECT_LT(static_cast<double>(job.bytes_sent()),
              (scheme == comm::Scheme::int8 ? 0.4 : 0.6) * static_cast<double>(plain.bytes_sent()));
  }
}

// With topk an eighth, and for each matrix a product of rank 2: error feedback makes up for the
// rest.
TEST(ServerTraining, ShortenedPushesLearn) {
  const auto data = ImageTask(torch::kFloat32);
  const auto alone = train_plainly(data, one_device({.dtype = torch::kFloat32}));
  const auto exact = loss_with(alone.parameters, data);
  for (const auto scheme :
       {comm::Scheme::float16, comm::Scheme::bfloat16, comm::Scheme::int8, comm::Scheme::int4,
        comm::Scheme::topk, comm::Scheme::powersgd, comm::Scheme::sign}) {
    ServerJob job({.name = std::string(comm::to_string(scheme)),
                   .rates = {300, 100},
                   .servers = {1, 1},
                   .push = {.scheme = scheme, .density = 0.125, .warmup_steps = 12, .rank = 2},
                   .dtype = torch::kFloat32},
                  data);
    job.run();
    // One bit per element has not got all across after so few steps.
    const double worse = scheme == comm::Scheme::sign ? 1.3 : 1.1;
    EXPECT_LT(loss_with(job.parameters(), data), worse * exact) << comm::to_string(scheme);
  }
}

// Leases ahead in async with Adam's short steps: those of the other cases are too long for
// gradients of that age, on one device, too.
const ServerCase stale_cases[] = {
    {"Async", {300, 100}, {1, 1}, Consistency::async},
    {"Bounded", {300, 100, 100}, {1}, Consistency::bounded, 2},
    {.name = "AsyncAhead",
     .rates = {300, 100},
     .servers = {1, 1},
     .consistency = Consistency::async,
     .adam = true,
     .overlaps = true,
     .prefetch = Prefetch::on},
    {.name = "AsyncAheadAndAWorkerIsLost",
     .rates = {300, 100},
     .servers = {1},
     .consistency = Consistency::async,
     .adam = true,
     .lost_after = 3,
     .prefetch = Prefetch::on},
    {.name = "BoundedAhead",
     .rates = {300, 100},
     .servers = {2, 1},
     .consistency = Consistency::bounded,
     .staleness = 2,
     .ring_bytes = 0,
     .prefetch = Prefetch::on},
};

// Without the barrier the result is another one, learns, and has visited every sample once.
TEST(ServerTraining, StaleGradientsLearnAndAreCounted) {
  const auto data = ImageTask();
  for (const auto& shown : stale_cases) {
    ServerJob job(shown, data);
    job.run();
    const auto figures = job.figures();
    const auto oldest = std::ranges::max_element(
        figures, {}, [](const auto& worker) { return worker.staleness_max; });
    // As well as one device all of whose gradients are as old as the oldest here.
    auto delayed = one_device(shown);
    delayed.delay = static_cast<std::size_t>(oldest->staleness_max);
    EXPECT_LT(loss_with(job.parameters(), data),
              1.05 * loss_with(train_plainly(data, delayed).parameters, data))
        << shown.name << ", delay " << delayed.delay;
    std::int64_t samples = 0;
    for (const auto& worker : figures) {
      samples += worker.samples;
      if (shown.consistency == Consistency::bounded) {
        EXPECT_LE(worker.staleness_max, 2);
      }
    }
    EXPECT_EQ(samples, epochs * sample_count) << shown.name;
  }
}

}  // namespace
}  // namespace bimetal::golden
