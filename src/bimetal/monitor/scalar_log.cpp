#include "bimetal/monitor/scalar_log.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/monitor/unix_time.h"

namespace bimetal::monitor {
namespace {

constexpr double kStepEverySeconds = 0.1;
constexpr std::chrono::milliseconds kWriteEvery{500};
// A disk that hangs for minutes costs points, not memory without end.
constexpr std::size_t kMostWaiting = 10000;

void add_known(std::vector<Scalar>& scalars, std::string tag, std::optional<double> value) {
  if (value) scalars.push_back({std::move(tag), static_cast<float>(*value)});
}

std::vector<Scalar> scalars_of(const Status& status) {
  std::vector<Scalar> scalars;
  add_known(scalars, "loss", status.loss);
  const auto rate = status.counts + "_per_s";
  add_known(scalars, rate, status.samples_per_s);
  add_known(scalars, "efficiency", status.efficiency);
  for (const auto& worker : status.workers) {
    const auto tag = [&](const std::string& what) {
      return fmt::format("{}/rank_{}", what, worker.rank);
    };
    add_known(scalars, tag("share"), static_cast<double>(worker.share));
    add_known(scalars, tag("worker_" + rate), worker.samples_per_s);
    add_known(scalars, tag("wait_part"), worker.wait_part);
    add_known(scalars, tag("bytes_per_s"), worker.bytes_per_s);
    add_known(scalars, tag("staleness"), worker.staleness);
  }
  return scalars;
}

}  // namespace

ScalarLog::ScalarLog(const std::filesystem::path& folder, const std::string& host)
    : file_(folder, host), thread_([this] { write_until_stopped(); }) {}

ScalarLog::~ScalarLog() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool ScalarLog::wants_step() const {
  return !any_step_ || since_step_.seconds() >= kStepEverySeconds;
}

void ScalarLog::add_step(const Status& status) {
  any_step_ = true;
  since_step_ = Stopwatch();
  add(status.step, scalars_of(status));
}

void ScalarLog::add_evaluation(std::int64_t step, const progress::Evaluation& evaluation) {
  std::vector<Scalar> scalars;
  const auto prefix = evaluation.data + "_";
  for (const auto& [name, value] : evaluation.metrics) add_known(scalars, prefix + name, value);
  add_known(scalars, prefix + "loss", evaluation.loss);
  add(step, std::move(scalars));
}

void ScalarLog::add(std::int64_t step, std::vector<Scalar> scalars) {
  const std::scoped_lock lock(mutex_);
  if (waiting_.size() < kMostWaiting) {
    waiting_.push_back({unix_time(), step, std::move(scalars)});
  }
}

void ScalarLog::write_until_stopped() {
  bool failed = false;
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    wake_.wait_for(lock, kWriteEvery, [this] { return stopped_; });
    last = stopped_;
    const auto points = std::exchange(waiting_, {});
    if (failed || points.empty()) continue;
    lock.unlock();
    try {
      write(points);
    } catch (const Error& error) {
      failed = true;
      log(LogLevel::warning, "{}; nothing more is written for TensorBoard", error.what());
    }
    lock.lock();
  }
}

void ScalarLog::write(const std::vector<Point>& points) {
  // A job that goes on from a checkpoint does some steps again: the new ones count.
  if (!std::exchange(begun_, true)) {
    file_.append(encode_session_start(points.front().wall_time, points.front().step));
  }
  for (const auto& point : points) {
    file_.append(encode_scalars(point.wall_time, point.step, point.scalars));
  }
  file_.flush();
}

}  // namespace bimetal::monitor
