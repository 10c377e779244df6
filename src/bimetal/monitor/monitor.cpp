#include "bimetal/monitor/monitor.h"

#include <fmt/format.h>

#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/monitor/pages.h"
#include "bimetal/monitor/status.h"

namespace bimetal::monitor {
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
