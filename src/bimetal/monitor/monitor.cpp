#include "bimetal/monitor/monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string_view>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/log.h"
#include "bimetal/monitor/pages.h"
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

namespace {

constexpr std::size_t kMostPressed = 4096;  // bytes

net::HttpServerOptions server_options(const net::Endpoint& listen, const net::Token& job_token,
                                      const Access& access) {
  require_token_for_monitor(listen, job_token);
  net::HttpServerOptions options{.listen = listen};
  options.max_body_bytes = kMostPressed;
  options.admits = [&access](const net::HttpRequest& request) {
    return access.knows(request) || Access::is_link(request.path);
  };
  if (!net::is_loopback(listen.host)) options.token = monitor_token(job_token);
  return options;
}

}  // namespace

void require_token_for_monitor(const net::Endpoint& listen, const net::Token& job_token) {
  if (!job_token.empty() || net::is_loopback(listen.host)) return;
  throw Error(ErrorCode::Unauthorized,
              fmt::format("{} is not a loopback address, and the job has no token: anyone on the "
                          "network could watch it. Pass --token-file, set BIMETAL_TOKEN_FILE or "
                          "BIMETAL_TOKEN, or take --monitor 127.0.0.1:{}",
                          listen.host, listen.port));
}

Monitor::Monitor(const MonitorOptions& options)
    : page_(recorder_, history_, access_, options.buttons, options.run_dir) {
  if (!options.tensorboard_dir.empty()) {
    scalars_.emplace(options.tensorboard_dir, options.host_name);
  }
  if (!options.run_dir.empty()) {
    writer_.emplace(recorder_, history_, options.run_dir, options.job);
    writer_->set_place(options.host_name, "");
  }
  if (!options.listen) return;
  try {
    server_.emplace(
        server_options(*options.listen, options.job_token, access_),
        [this](const net::HttpRequest& request, std::string_view body,
               const net::HttpServer::Respond& respond) { respond(answer(request, body)); });
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("the monitor cannot start: {}", error.what()));
  }
  if (writer_) writer_->set_place(options.host_name, address());
}

Monitor::~Monitor() {
  log_step();
}

void Monitor::hand_on() {
  if (writer_) writer_->hand_on();
}

void Monitor::end(bool interrupted, double loss) {
  if (writer_) writer_->end(interrupted, loss);
}

/// The last step, unless the log has it.
void Monitor::log_step() {
  if (!scalars_ || step_ == logged_step_) return;
  logged_step_ = step_;
  scalars_->add_step(recorder_.status());
}

std::optional<net::Endpoint> Monitor::endpoint() const {
  return server_ ? std::optional(server_->endpoint()) : std::nullopt;
}

std::string Monitor::address() const {
  const auto bound = endpoint();
  return bound ? net::to_string({net::reachable_address(bound->host), bound->port}) : "";
}

std::string Monitor::link() {
  const auto at = address();
  return at.empty() ? "" : fmt::format("http://{}{}", at, link_path());
}

net::HttpAnswer Monitor::answer(const net::HttpRequest& request, std::string_view body) {
  if (auto answer = page_.answer(request, body)) return std::move(*answer);
  const auto path = request.path;
  if (request.method != "GET" && request.method != "HEAD") {
    return {405, "text/plain", "only GET and HEAD are known here\n"};
  }
  if (path == kMetricsPath) return {200, kPrometheusContentType, to_prometheus(recorder_.status())};
  if (path == kStatusPath) return {200, "application/json", to_json(recorder_.status())};
  return {404, "text/plain", "there are /, /metrics and /status here\n"};
}

void Monitor::on_phase(const std::string& what) {
  recorder_.on_phase(what);
  history_.on_phase(what);
}

void Monitor::on_data(const progress::DataProgress& progress) {
  recorder_.on_data(progress);
}

void Monitor::on_workers(const std::vector<progress::WorkerPlace>& places) {
  recorder_.on_workers(places);
}

void Monitor::on_step(const progress::Progress& progress) {
  recorder_.on_step(progress);
  history_.on_step(progress);
  step_ = progress.step;
  if (scalars_ && scalars_->wants_step()) log_step();
}

void Monitor::on_evaluated(std::int64_t epoch, const progress::Evaluation& evaluation) {
  recorder_.on_evaluated(epoch, evaluation);
  history_.on_evaluated(epoch, evaluation);
  log_step();
  if (scalars_) scalars_->add_evaluation(step_, evaluation);
}

void Monitor::on_checkpoint(const std::string& path, std::int64_t step) {
  history_.on_checkpoint(path, step);
}

void Monitor::on_rescue(const progress::Rescue& rescue) {
  history_.on_rescue(rescue);
}

void Monitor::on_profile(const progress::StepTimes& times) {
  history_.on_profile(times);
}

void Monitor::on_notice(const std::string& text) {
  recorder_.on_notice(text);
  history_.on_notice(text);
}

void Monitor::on_sample(const progress::Sample& sample) {
  history_.on_sample(sample);
}

void Monitor::on_rank_lines(int worker, const std::string& host,
                            const std::vector<progress::RankLine>& lines) {
  history_.on_rank_lines(worker, host, lines);
}

void Monitor::on_members(const progress::MembersChange& change) {
  recorder_.on_members(change);
  history_.on_members(change);
}

}  // namespace bimetal::monitor
