#include "bimetal/monitor/monitor.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/launch/rank_places.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/progress/journal.h"
#include "bimetal/progress/progress.h"
#include "bimetal/progress/rank_log.h"
#include "bimetal/progress/text.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

/// A loop in Python, shown as a job is: the figures of the loop's rank 0 become those of a job. Use
/// from one thread at a time.
class LoopMonitor {
 public:
  /// A rank's figures in a step: samples and seconds of compute; since the loop's start seconds of
  /// waiting and bytes sent; samples/s by itself, as long as it has computed nothing. NaN: not
  /// known.
  using Figures = std::tuple<double, double, double, double, double>;

  LoopMonitor(const std::string& listen, const std::string& tensorboard_dir,
              const std::string& host_name, std::string counts, const std::string& run_dir,
              const std::string& settings)
      : counts_(std::move(counts)), run_dir_(run_dir) {
    monitor::MonitorOptions options{.tensorboard_dir = tensorboard_dir,
                                    .host_name = host_name,
                                    .run_dir = run_dir,
                                    .job = settings};
    if (!listen.empty()) {
      options.listen = net::parse_endpoint(listen);
      if (!net::is_loopback(options.listen->host)) {
        options.job_token = net::Token::from_environment();
      }
    }
    monitor_.emplace(options);
    monitor_->on_phase("training");
  }
  /// Its threads may be telling Python something.
  ~LoopMonitor() { close(); }

  /// Empty where nobody asked for pages.
  std::string address() const { return monitor_ ? monitor_->address() : ""; }

  /// The link by which a browser opens the page, once; empty likewise.
  std::string link() { return monitor_ ? monitor_->link() : ""; }

  void set_workers(const std::vector<std::pair<std::string, std::string>>& host_and_device) {
    std::vector<progress::WorkerPlace> places;
    for (const auto& [host, device] : host_and_device) places.push_back({host, device});
    if (monitor_) monitor_->on_workers(places);
  }

  /// A rank's log: Unix time, kind and text of each line.
  void lines(int rank, const std::string& host,
             const std::vector<std::tuple<double, std::string, std::string>>& said) {
    std::vector<progress::RankLine> lines;
    for (const auto& [at, kind, text] : said) lines.push_back({at, kind, text});
    if (monitor_) monitor_->on_rank_lines(rank, host, lines);
  }

  void start() { meter_.start(); }
  void stop() { meter_.stop(); }

  /// Returns the line for a terminal. `epoch_of`: from 0; `batch`: the average weight of a step.
  std::string step(std::pair<std::int64_t, std::int64_t> epoch_of,
                   std::pair<std::int64_t, std::int64_t> step_of, std::int64_t batch, double loss,
                   const std::vector<std::int64_t>& shares, const std::vector<Figures>& ranks) {
    workers_.resize(ranks.size());
    bool computed = true;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      add(ranks[rank], workers_[rank]);
      const auto& totals = workers_[rank].totals;
      computed = computed && (totals.samples == 0 || totals.compute_s > 0);
    }
    const progress::RunPlan plan{.epochs = epoch_of.second,
                                 .steps = step_of.second,
                                 .global_batch = batch,
                                 .counts = counts_};
    const progress::StepDone done{.number = step_of.first,
                                  .epoch = epoch_of.first,
                                  .weight = 1,
                                  .loss_sum = loss,
                                  .shares = shares};
    auto progress = progress::progress_after(done, plan, workers_, meter_);
    if (!computed) progress.efficiency = kUnknown;
    if (monitor_) monitor_->on_step(progress);
    return progress::progress_line(progress);
  }

  /// Returns the line for a terminal.
  std::string evaluated(std::int64_t epoch, double loss,
                        const std::vector<std::pair<std::string, double>>& metrics,
                        const std::string& data) {
    progress::Evaluation evaluation{.loss = loss, .data = data};
    auto line = fmt::format("epoch {}: ", epoch);
    for (const auto& [name, value] : metrics) {
      const auto& metric = evaluation.metrics.emplace_back(progress::MetricValue{name, value});
      line += fmt::format("{} {}, ", progress::label_of(metric, data), progress::text_of(metric));
    }
    if (monitor_) monitor_->on_evaluated(epoch, evaluation);
    return line + fmt::format("{} loss {:.4f}", data, loss);
  }

  /// The loop has ended well, or by Ctrl-C, with that loss: for its record. Without this call it
  /// has failed.
  void end(bool interrupted, double loss) {
    if (monitor_) monitor_->end(interrupted, loss);
    if (run_dir_.empty()) return;
    launch::leave_last_words("run " + std::filesystem::absolute(run_dir_).string());
  }

  void close() { monitor_.reset(); }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  static void add(const Figures& figures, progress::WorkerState& worker) {
    const auto& [samples, compute_s, wait_s, bytes_sent, expected_alone] = figures;
    worker.expected_alone = expected_alone;
    auto& totals = worker.totals;
    totals.samples += static_cast<std::int64_t>(samples);
    totals.compute_s += compute_s;
    totals.communicate_s = kUnknown;
    totals.wait_s = wait_s;
    if (bytes_sent >= 0) totals.bytes_sent = static_cast<std::uint64_t>(bytes_sent);
  }

  std::string counts_, run_dir_;
  std::optional<monitor::Monitor> monitor_;
  progress::ProgressMeter meter_;
  std::vector<progress::WorkerState> workers_;
};

}  // namespace

void bind_monitor(Bindings& bindings) {
  Bindings::Class<LoopMonitor>(bindings, "LoopMonitor")
      .made_of<const std::string&, const std::string&, const std::string&, std::string,
               const std::string&, const std::string&>()
      .property("address", &LoopMonitor::address)
      .method("link", &LoopMonitor::link, Lock::kept)
      .method("set_workers", &LoopMonitor::set_workers, Lock::kept)
      .method("lines", &LoopMonitor::lines, Lock::kept)
      .method("start", &LoopMonitor::start, Lock::kept)
      .method("stop", &LoopMonitor::stop, Lock::kept)
      .method("step", &LoopMonitor::step, Lock::kept)
      .method("evaluated", &LoopMonitor::evaluated, Lock::kept)
      .method("end", &LoopMonitor::end, Lock::kept)
      .method("close", &LoopMonitor::close);
}

}  // namespace bimetal::python
