// TensorBoard itself reads our event files. Needs the Python package tensorboard, as
// scripts/setup.sh installs it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "bimetal/monitor/monitor.h"
#include "support/project_python.h"
#include "support/temporary_folder.h"

namespace bimetal::monitor {
namespace {

/// Steps `first` to `last` of a job, and what was evaluated after them.
void train(const std::filesystem::path& folder, std::int64_t first, std::int64_t last, float loss,
           const std::string& counts = "images") {
  Monitor monitor({.tensorboard_dir = folder, .host_name = "pc"});
  for (auto step = first; step <= last; ++step) {
    monitor.on_step({.step = step,
                     .loss = loss,
                     .samples_per_s = 1000,
                     .elapsed_s = 0.1 * static_cast<double>(step - first + 1),
                     .counts = counts,
                     .shares = {48, 16},
                     .workers = {{.samples = 48 * (step - first + 1)},
                                 {.samples = 16, .staleness = progress::Staleness{4, 6, 3}}}});
    std::this_thread::sleep_for(std::chrono::milliseconds(110));  // every step is written
  }
  monitor.on_evaluated(1, {.loss = 0.5, .metrics = {{"accuracy", 0.75}}});
}

TEST(TensorBoard, ReadsWhatAJobAndItsResumedHalfHaveWritten) {
  const auto python = ::bimetal::test::python_with("tensorboard");
  if (python.empty()) GTEST_SKIP() << "the Python package tensorboard is not installed";
  const ::bimetal::test::TemporaryFolder folder;
  train(folder / "run", 1, 5, 0.25f);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // files are named by the second
  train(folder / "run", 4, 6, 0.125f);  // went on from a checkpoint after step 3
  train(folder / "language", 1, 2, 0.25f, "tokens");
  ::bimetal::test::put_contents(folder / "read.py", R"(
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("run").Reload()
def points(tag):
    return [(point.step, point.value) for point in events.Scalars(tag)]
assert points("loss") == [(1, .25), (2, .25), (3, .25), (4, .125), (5, .125), (6, .125)], points("loss")
assert points("test_accuracy") == [(6, .75)], points("test_accuracy")
assert points("test_loss") == [(6, .5)]
assert points("images_per_s")[0] == (1, 1000)
assert points("share/rank_1") == [(step, 16) for step in range(1, 7)]
rates = points("worker_images_per_s/rank_0")
assert len(rates) == 6 and all(abs(value - 480) < 1e-3 for _, value in rates), rates
assert points("staleness/rank_1")[0] == (1, 1.5), points("staleness/rank_1")
assert "staleness/rank_0" not in events.Tags()["scalars"]
language = EventAccumulator("language").Reload().Tags()["scalars"]
assert "tokens_per_s" in language and "worker_tokens_per_s/rank_0" in language, language
first = events.Scalars("loss")[0].wall_time
assert 1.7e9 < first < 1e11, first
)");
  const auto command = fmt::format("cd {} && {} read.py", folder.path().string(), python);
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace bimetal::monitor
