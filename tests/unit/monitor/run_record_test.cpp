#include "bimetal/monitor/run_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "bimetal/monitor/monitor.h"
#include "support/temporary_folder.h"

namespace bimetal::monitor {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  ::bimetal::test::put_contents(path, text);
}

class Runs : public ::testing::Test {
 protected:
  Monitor start(const char* name) const {
    return Monitor({.host_name = "pc", .run_dir = parent() / name, .job = "[train]\nseed = 1\n"});
  }
  fs::path parent() const { return folder.path(); }

  /// Of 4 samples each.
  static void train(Monitor& monitor, std::int64_t first, std::int64_t last) {
    monitor.on_workers({{"pc", "cpu"}});
    for (auto step = first; step <= last; ++step) {
      monitor.on_step({.step = step,
                       .steps = 10,
                       .loss = 1.0 / static_cast<double>(step),
                       .elapsed_s = 0.5 * static_cast<double>(step - first + 1),
                       .shares = {4},
                       .rank_samples_per_s = {5},
                       .workers = {{.samples = 4 * (step - first + 1)}}});
    }
  }

  const ::bimetal::test::TemporaryFolder folder;
};

TEST_F(Runs, OneLeavesARecordOfItself) {
  {
    auto monitor = start("a");
    train(monitor, 1, 3);
    monitor.on_evaluated(1, {.loss = 0.25, .metrics = {{"accuracy", 0.75}}});
    monitor.end(false, 0.5);
  }
  const auto record = read_run_record(parent() / "a").value();
  EXPECT_EQ(record.state, "done");
  EXPECT_EQ(record.step, 3);
  EXPECT_EQ(record.steps, 10);
  EXPECT_EQ(record.samples, 12);
  EXPECT_EQ(record.loss, 0.5);
  EXPECT_EQ(record.job, "[train]\nseed = 1\n");
  EXPECT_THAT(record.workers, ElementsAre("cpu on pc"));
  ASSERT_EQ(record.curve.size(), 3U);
  EXPECT_EQ(record.curve[1].samples, 8);
  EXPECT_EQ(record.curve[1].elapsed_s, 1);
  ASSERT_EQ(record.evaluations.size(), 1U);
  EXPECT_EQ(record.evaluations[0].step, 3);
  EXPECT_EQ(record.evaluations[0].evaluation.metrics[0].value, 0.75);
}

TEST_F(Runs, OneThatIsResumedGoesOnWithIt) {
  {
    auto monitor = start("a");
    train(monitor, 1, 6);
  }  // the last two steps were not saved
  EXPECT_EQ(read_run_record(parent() / "a")->state, "failed");
  {
    auto monitor = start("a");
    train(monitor, 5, 7);
    monitor.end(true, 0);
  }
  const auto record = read_run_record(parent() / "a").value();
  EXPECT_EQ(record.state, "stopped");
  std::vector<std::int64_t> steps, samples;
  for (const auto& point : record.curve) {
    steps.push_back(point.step);
    samples.push_back(point.samples);
  }
  EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(samples, ElementsAre(4, 8, 12, 16, 20, 24, 28));
  EXPECT_EQ(record.elapsed_s, 3.5);
  {
    auto monitor = start("a");
    train(monitor, 1, 2);
  }
  EXPECT_EQ(read_run_record(parent() / "a")->curve.size(), 2U);  // from the beginning
}

TEST_F(Runs, WhoHandsOneOnWritesNoMore) {
  {
    auto monitor = start("a");
    train(monitor, 1, 2);
    monitor.hand_on();
    auto next = start("a");
    train(next, 3, 4);
    next.end(false, 0.5);
  }  // the first one ends last
  EXPECT_EQ(read_run_record(parent() / "a")->state, "done");
}

TEST_F(Runs, WithoutAStepThereIsNone) {
  start("a");
  EXPECT_FALSE(fs::exists(parent() / "a"));
}

TEST_F(Runs, AreListedTheNewestFirst) {
  const auto written = [&](const char* name, const char* state, std::chrono::seconds ago) {
    auto record = RunRecord{.state = state};
    write(parent() / name / kRunFile, to_json(record));
    fs::last_write_time(parent() / name / kRunFile, fs::file_time_type::clock::now() - ago);
  };
  using std::chrono::seconds;
  written("now", "running", seconds(0));
  written("silent", "running", seconds(100));
  written("early", "done", seconds(200));
  fs::create_directories(parent() / "bare" / "step-00000012");
  fs::create_directories(parent() / "bare" / "step-00000007");
  fs::last_write_time(parent() / "bare", fs::file_time_type::clock::now() - seconds(300));
  fs::create_directories(parent() / "empty");
  write(parent() / "damaged" / kRunFile, "{");
  write(parent() / "file", "");
  std::vector<std::string> found;
  for (const auto& run : list_runs(parent(), 9)) {
    found.push_back(run.folder.filename().string() + " " + run.state);
  }
  EXPECT_THAT(found, ElementsAre("now running", "silent lost", "early done", "bare unknown"));
  EXPECT_EQ(list_runs(parent(), 9).back().step, 12);
  EXPECT_EQ(list_runs(parent(), 2).size(), 2U);
  EXPECT_TRUE(list_runs(parent() / "nowhere", 9).empty());
}

TEST(RunRecord, OtherTextIsNone) {
  for (const char* text : {"", "null", "[]", "{}", R"({"format_version": 1})",
                           R"({"format_version": 2})", R"({"format_version": "1"})"}) {
    EXPECT_FALSE(parse_run_record(text)) << text;
  }
  RunRecord record{.evaluations = {{.step = 1, .evaluation = {.loss = std::nan("")}}}};
  record.curve.push_back({.loss = std::nan("")});
  EXPECT_TRUE(parse_run_record(to_json(record)));
}

TEST(RunRecord, CurvesAreThinnedByMeans) {
  std::vector<CurvePoint> curve(1000);
  for (std::size_t i = 0; i < curve.size(); ++i) {
    curve[i] = {.step = static_cast<std::int64_t>(i + 1), .loss = static_cast<double>(i % 2)};
  }
  const auto few = thinned(curve);
  EXPECT_EQ(few.size(), 334U);
  EXPECT_EQ(few.front().step, 3);
  EXPECT_EQ(few.back().step, 1000);
  const auto sum = std::accumulate(few.begin(), few.end(), 0.0,
                                   [](double all, const auto& point) { return all + point.loss; });
  EXPECT_NEAR(sum / 334, 0.5, 0.01);
}

}  // namespace
}  // namespace bimetal::monitor
