#include "bimetal/cli/rank/rank_observer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <asio/ip/host_name.hpp>
#include <cmath>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

#include "bimetal/cli/json_output.h"
#include "bimetal/cli/predict/text_codec.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/rank_places.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/progress/metrics.h"
#include "bimetal/progress/progress.h"
#include "bimetal/progress/text.h"
#include "bimetal/progress/together.h"

namespace bimetal::cli {
namespace {

constexpr std::chrono::milliseconds kLiveEvery{100};
constexpr std::chrono::milliseconds kPlainEvery{5000};

}  // namespace

std::string data_line(const progress::DataProgress& progress) {
  if (std::isnan(progress.part)) return progress.what;
  return fmt::format("{}: {:.0f} %, {} left", progress.what, 100 * progress.part,
                     progress::clock_text(progress.seconds_left));
}

void ProgressPrinter::on_phase(const std::string& what) {
  if (terminal_.live()) {
    terminal_.rewrite(what + " …");
  } else {
    terminal_.print(what);
  }
}

void ProgressPrinter::show_now_and_then(const std::function<std::string()>& line) {
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + (terminal_.live() ? kLiveEvery : kPlainEvery);
  if (terminal_.live()) {
    terminal_.rewrite(line());
  } else {
    terminal_.print(line());
  }
}

void ProgressPrinter::on_data(const progress::DataProgress& progress) {
  show_now_and_then([&] { return data_line(progress); });
}

void ProgressPrinter::on_step(const progress::Progress& progress) {
  show_now_and_then([&] { return line_(progress); });
}

void ProgressPrinter::on_evaluated(std::int64_t epoch, const progress::Evaluation& evaluation) {
  auto line = fmt::format("epoch {}: ", epoch);
  for (const auto& metric : evaluation.metrics) {
    line += fmt::format("{} {}, ", progress::label_of(metric, evaluation.data),
                        terminal_.coloured(Colour::green, progress::text_of(metric)));
  }
  terminal_.print(line + fmt::format("{} loss {:.4f}", evaluation.data, evaluation.loss));
}

void ProgressPrinter::on_notice(const std::string& text) {
  terminal_.print(fmt::format("{} {}", terminal_.coloured(Colour::yellow, "note:"), text));
}

namespace {

void print_workers(Terminal& terminal, const progress::Report& report) {
  terminal.print(terminal.coloured(
      Colour::bold,
      fmt::format("{:>4}  {:<36} {:>7} {:>15} {:>9} {:>14} {:>9}", "rank", "worker", "share",
                  report.counts + "/s alone", "compute", "communication", "waiting")));
  for (const auto& worker : report.workers) {
    const auto where = fmt::format("{} on {}", worker.device, worker.host);
    terminal.print(
        fmt::format("{:>4}  {:<36} {:>5.1f} % {:>15.0f} {:>7.1f} s {:>12.1f} s {:>7.1f} s",
                    worker.rank, where, 100 * worker.share, worker.samples_per_s_alone,
                    worker.compute_s, worker.communicate_s, worker.wait_s));
  }
}

/// Nothing where it is not known.
std::string rate_text(double bytes, double seconds) {
  return seconds > 0 ? fmt::format(" at {:.0f} MB/s", bytes / seconds / 1e6) : "";
}

void add_disk(std::string& line, const char* what,
              const std::optional<progress::DiskReport>& disk) {
  if (!disk) return;
  line += fmt::format("; {}: {:.0f} MB read{}, {:.0f} MB written{}, {:.1f} s waited for", what,
                      disk->read_bytes / 1e6, rate_text(disk->read_bytes, disk->read_s),
                      disk->written_bytes / 1e6, rate_text(disk->written_bytes, disk->write_s),
                      disk->wait_s);
}

/// The disk's part in a job, beside its rate for a plain copy.
void print_offload(Terminal& terminal, const progress::WorkerReport& worker) {
  if (!worker.offload) return;
  auto line = fmt::format("rank {} offloads to {}", worker.rank, worker.offload->folder);
  add_disk(line, "states", worker.offload->states);
  add_disk(line, "parameters", worker.offload->parameters);
  if (const auto& copy = worker.offload->copy) {
    line += fmt::format("; a plain copy there: read{}, written{}",
                        rate_text(copy->read_bytes, copy->read_s),
                        rate_text(copy->written_bytes, copy->write_s));
  }
  terminal.print(line);
}

/// The contract is: never worse than the best device alone without saying so.
void print_if_slower(Terminal& terminal, const progress::Report& report) {
  const auto fastest = progress::fastest_alone(report);
  if (!fastest || fastest->job_relative >= 1) return;
  terminal.print(fmt::format(
      "note: slower than rank {} alone: {:.2f} × the {:.0f} {}/s at which it computed in this run "
      "(a run by itself would tell for sure); {}",
      fastest->rank, fastest->job_relative, fastest->samples_per_s_alone, report.counts,
      fastest->time));
}

/// As far as there is a tokenizer beside the data; else their numbers.
std::string text_of_tokens(const std::string& data, std::int64_t vocabulary,
                           const std::vector<std::int64_t>& tokens) {
  try {
    return TextCodec(tokenizer_of(data, vocabulary), vocabulary).decode(tokens);
  } catch (const std::exception&) {
    return fmt::format("tokens {}", fmt::join(tokens, " "));
  }
}

/// The place of a file of rank 0's: the user who has started ranks on several machines must know on
/// which one it is.
std::string place_of(const std::string& path, const std::vector<progress::WorkerPlace>& workers) {
  const auto here = asio::ip::host_name();
  const bool elsewhere =
      std::ranges::any_of(workers, [&](const auto& worker) { return worker.host != here; });
  if (!elsewhere) return path;
  return fmt::format("{} on {}", std::filesystem::absolute(path).string(), here);
}

}  // namespace

void start_monitor(std::optional<monitor::Monitor>& monitor, const RankRequest& request,
                   const monitor::Buttons& buttons, Terminal& terminal) {
  const auto& job = request.job;
  const auto& config = job.monitor;
  monitor::MonitorOptions options{.job_token = net::Token::from_environment(),
                                  .tensorboard_dir = tensorboard_folder(job),
                                  .host_name = asio::ip::host_name(),
                                  .buttons = buttons,
                                  .run_dir = job.checkpoint.dir,
                                  .job = job::to_toml(job)};
  options.buttons.save = !job.checkpoint.dir.empty();
  if (!config.listen.empty()) options.listen = net::parse_endpoint(config.listen);
  // A link on a terminal is for its user. In a file it would be for all who read the file.
  const bool unasked = config.page == "auto" && terminal.live();
  const bool here = !options.listen || net::is_loopback(options.listen->host);
  const bool page = config.page == "on" || (unasked && here);
  const bool read = page || !trackers_of(request).empty();
  if (read && !options.listen) options.listen = {"127.0.0.1", 0};
  try {
    monitor.emplace(options);
  } catch (const Error&) {
    if (!config.listen.empty() || config.page == "on") throw;
    options.listen.reset();
    monitor.emplace(options);
  }
  const auto address = monitor->address();
  if (address.empty()) return;
  if (!config.listen.empty()) {
    terminal.print(fmt::format("monitor at {0}; watch it with: bimetal top {0}", address));
  }
  if (page) terminal.print(fmt::format("page at {} (a link for one browser)", monitor->link()));
}

void print_summary(Terminal& terminal, const progress::Report& report) {
  std::string line = fmt::format("{} {} steps in {}: {:.0f} {}/s, loss {:.4f}",
                                 report.interrupted ? "stopped after" : "trained", report.steps,
                                 progress::clock_text(report.elapsed_s), report.samples_per_s,
                                 report.counts, report.train_loss);
  for (const auto* data : {progress::kValidationData, progress::kTestData}) {
    for (const auto& metric : progress::last_metrics(report, data)) {
      line += fmt::format(", {} {}", progress::label_of(metric, data), progress::text_of(metric));
    }
  }
  if (report.world_size > 1) {
    line += fmt::format(", efficiency {:.0f} % {}", 100 * report.efficiency,
                        report.mesh ? "of the time is computation" : "of what they compute alone");
  }
  terminal.print(terminal.coloured(Colour::bold, line));
  if (report.world_size > 1) print_workers(terminal, report);
  for (const auto& worker : report.workers) print_offload(terminal, worker);
  print_if_slower(terminal, report);
}

void print_if_kept_nowhere(Terminal& terminal, const job::JobConfig& job) {
  if (!job.checkpoint.dir.empty()) return;
  terminal.print(
      fmt::format("{} nothing of this training will be kept: the job has no checkpoint.dir",
                  terminal.coloured(Colour::yellow, "note:")));
}

void print_end(Terminal& terminal, const progress::Report& report, const std::string& checkpoint) {
  if (report.interrupted && report.workers.empty()) {
    terminal.print("stopped before training began");
    return;
  }
  print_summary(terminal, report);
  if (checkpoint.empty()) {
    terminal.print("nothing was saved: the job has no checkpoint.dir");
  } else if (report.interrupted) {
    terminal.print(fmt::format("checkpoint {}; go on with --resume {}", checkpoint, checkpoint));
  } else {
    terminal.print(fmt::format("checkpoint {}", checkpoint));
  }
}

RankVoice::RankVoice(const RankRequest& request, launch::StatusReporter& status, bool guest)
    : Observers({}),
      request_(request),
      status_(status),
      guest_(guest),
      lead_(terminal_, request.stop_after_s > 0 ? progress::rate_line : progress::progress_line,
            status),
      printer_(terminal_, progress::progress_line) {
  if (guest_) tell({&printer_});
  show_warnings([this](std::string_view kind, std::string_view text) { log_.say(kind, text); });
}

RankVoice::~RankVoice() {
  show_warnings();
}

/// The text of a sample's tokens may take Python seconds to tell: so it is told beside the
/// training.
void RankVoice::on_sample(const progress::Sample& sample) {
  if (!monitor_) return;
  if (sample.prompt.empty()) return monitor_->on_sample(sample);
  reader_ = std::jthread();  // the one before is through
  reader_ = std::jthread([this, sample = progress::Sample(sample)]() mutable {
    const auto text = [&](const auto& tokens) {
      return text_of_tokens(request_.job.data.path, sample.vocabulary, tokens);
    };
    sample.text += fmt::format(": {} │ {}", text(sample.prompt), text(sample.tokens));
    monitor_->on_sample(sample);
  });
}

/// Those of a rank that leads are shown as they come.
void RankVoice::on_notice(const std::string& text) {
  if (!leads_) log_.say("notice", text);
  Observers::on_notice(text);
}

void RankVoice::on_leading(bool leads) {
  if (leads == leads_) return;
  leads_ = leads;
  if (leads) status_.leads();
  if (!leads) {
    tell(guest_ ? std::vector<Observer*>{&printer_} : std::vector<Observer*>());
    if (monitor_) monitor_->hand_on();
    end_trackers(RunEnd::moved);
    reader_ = std::jthread();
    monitor_.reset();
    return;
  }
  start_monitor(monitor_, request_,
                {.requests = &requests_, .leave = request_.elastic, .sample = true}, terminal_);
  trackers_.emplace(request_, *monitor_, terminal_);
  tell({&lead_, &*monitor_, &*trackers_});
  if (request_.summary) print_if_kept_nowhere(terminal_, request_.job);
  if (places_.empty() && request_.door.empty()) return;  // from the start
  if (!places_.empty()) monitor_->on_workers(places_);
  if (door_.empty()) return;
  terminal_.print(
      fmt::format("this worker leads the job now; others join by: bimetal join {}", door_));
}

void RankVoice::open_door(std::string address, bool said) {
  status_.door(address);
  if (status_.connected() && !said) return;  // by an engine
  door_ = std::move(address);
  if (leads_ && !said) terminal_.print("others join by: bimetal join " + door_);
}

void RankVoice::on_workers(const std::vector<progress::WorkerPlace>& places) {
  places_ = places;
  Observers::on_workers(places);
}

/// The launcher wants to know of each rank.
void RankVoice::on_rescue(const progress::Rescue& rescue) {
  if (!leads_) status_.rescue(rescue);
  Observers::on_rescue(rescue);
}

void RankVoice::end_trackers(RunEnd how) {
  if (trackers_) trackers_->end(how);
}

/// For `bimetal launch`, which tells them when all ranks have ended.
void RankVoice::leave_last_words() const {
  std::vector<std::string> words;
  const auto add = [&](const char* what, const std::string& path) {
    if (path.empty()) return;
    words.push_back(fmt::format("{} {}", what, std::filesystem::absolute(path).string()));
  };
  add("report", request_.report);
  add("checkpoint", lead_.last_checkpoint());
  launch::leave_last_words(fmt::format("{}", fmt::join(words, ", ")));
}

void RankVoice::end(const progress::Report& report) {
  if (report.left) status_.left();
  if (!leads_ && !guest_) return;
  terminal_.clear();
  if (report.left) {
    if (monitor_) monitor_->hand_on();
    end_trackers(RunEnd::moved);
    terminal_.print("this worker has left the job, which the others go on with");
    return;
  }
  if (!leads_) {
    if (!report.workers.empty()) print_summary(terminal_, report);
    return;
  }
  monitor_->end(report.interrupted, report.train_loss);
  if (!request_.report.empty()) progress::write_report(report, request_.report);
  if (request_.json) print_json_text(progress::to_json(report));
  if (request_.summary) print_end(terminal_, report, lead_.last_checkpoint());
  if (request_.summary && !request_.report.empty()) {
    terminal_.print("report " + place_of(request_.report, places_));
  }
  leave_last_words();
  end_trackers(report.interrupted ? RunEnd::interrupted : RunEnd::finished);
  require_printed();
}

}  // namespace bimetal::cli
