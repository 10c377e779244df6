#include "bimetal/monitor/run_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/log.h"
#include "bimetal/monitor/status.h"

namespace bimetal::monitor {
namespace {

constexpr std::chrono::seconds kRecordEvery{5};

/// The part of an earlier record up to `step`, behind which a run goes on.
RunRecord up_to(RunRecord record, std::int64_t step) {
  const auto later = [&](const auto& point) { return point.step > step; };
  std::erase_if(record.curve, later);
  std::erase_if(record.evaluations, later);
  const auto last = record.curve.empty() ? CurvePoint() : record.curve.back();
  record.elapsed_s = last.elapsed_s;
  record.samples = last.samples;
  return record;
}

}  // namespace

RunWriter::RunWriter(const Recorder& recorder, const History& history, std::filesystem::path folder,
                     std::string job)
    : recorder_(recorder),
      history_(history),
      folder_(std::move(folder)),
      job_(std::move(job)),
      thread_([this] { write_until_ended(); }) {}

RunWriter::~RunWriter() {
  {
    const std::scoped_lock lock(mutex_);
    if (!ended_) state_ = "failed";
    ended_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void RunWriter::set_place(std::string host, std::string address) {
  const std::scoped_lock lock(mutex_);
  host_ = std::move(host);
  address_ = std::move(address);
}

void RunWriter::hand_on() {
  const std::scoped_lock lock(mutex_);
  ended_ = handed_on_ = true;
  wake_.notify_one();
}

void RunWriter::end(bool interrupted, double loss) {
  const std::scoped_lock lock(mutex_);
  state_ = interrupted ? "stopped" : "done";
  loss_ = loss;
  ended_ = true;
  wake_.notify_one();
}

void RunWriter::write_until_ended() {
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    // The first step is looked for more often: who lists runs wants to see a new one.
    wake_.wait_for(lock, begun_ ? kRecordEvery : kRecordEvery / 10, [this] { return ended_; });
    last = ended_;
    if (handed_on_ || recorder_.status().step == 0) continue;
    lock.unlock();
    try {
      write();
    } catch (const std::exception& error) {  // saving names the folder's fault
      log(LogLevel::info, "no {} is written: {}", kRunFile, error.what());
    }
    lock.lock();
  }
}

void RunWriter::write() {
  if (!std::exchange(begun_, true)) {
    const auto curve = history_.curve();
    const auto first = curve.empty() ? 1 : curve.front().step;
    if (first > 1) before_ = read_run_record(folder_);
    if (before_) before_ = up_to(*std::move(before_), first - 1);
    std::filesystem::create_directories(folder_);
  }
  write_file_atomically(folder_ / kRunFile, to_json(record()));
}

RunRecord RunWriter::record() {
  const auto status = recorder_.status();
  RunRecord record{.started_at = before_ ? before_->started_at : status.started_at,
                   .updated_at = unix_time(),
                   .counts = status.counts,
                   .epoch = status.epoch,
                   .epochs = status.epochs,
                   .step = status.step,
                   .steps = status.steps,
                   .elapsed_s = status.elapsed_s,
                   .loss = status.loss,
                   .samples_per_s = status.samples_per_s,
                   .efficiency = status.efficiency,
                   .job = job_,
                   .curve = history_.curve(),
                   .evaluations = history_.evaluations()};
  if (!record.curve.empty()) record.samples = record.curve.back().samples;
  for (const auto& worker : status.workers) {
    if (!worker.gone) record.workers.push_back(fmt::format("{} on {}", worker.device, worker.host));
  }
  if (before_) {
    const auto go_on = [&](auto& points, const auto& earlier) {
      for (auto& point : points) {
        point.elapsed_s += before_->elapsed_s;
        point.samples += before_->samples;
      }
      points.insert(points.begin(), earlier.begin(), earlier.end());
    };
    go_on(record.curve, before_->curve);
    go_on(record.evaluations, before_->evaluations);
    record.elapsed_s += before_->elapsed_s;
    record.samples += before_->samples;
  }
  record.curve = thinned(record.curve);
  const std::scoped_lock lock(mutex_);
  record.state = state_;
  record.host = host_;
  if (state_ == "running") record.address = address_;
  if (loss_) record.loss = loss_;
  return record;
}

}  // namespace bimetal::monitor
