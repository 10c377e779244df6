#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <unistd.h>  // mkdtemp on macOS

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <system_error>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/demo/demo_job.h"
#include "bimetal/cli/demo/demo_table.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/start/run_job.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/job_config.h"

namespace bimetal::cli {
namespace {

constexpr const char* kDemoExamples = R"(Examples:
  bimetal demo
  bimetal demo --quick
  bimetal demo --worker cuda:0 --worker cpu:threads=4)";

constexpr double kTrainingImages = 60'000;  // of Fashion-MNIST

struct DemoArguments {
  std::vector<std::string> workers;
  std::string report;
  bool quick = false, json = false;
};

/// How long the parts take. The real training is of whole epochs: as many as fit, but at least one
/// and at most the job's.
struct Pace {
  double short_run_s = 0;
  double balanced_run_s = 0;
};

constexpr Pace kFull{12, 130};
constexpr Pace kQuick{5, 0};

/// Thrown when the user has stopped one of the runs; carries the exit status.
struct Stopped {
  int status;
};

/// Error(System) if the report can't be read, Error(CorruptData) if it is none.
RunFigures read_run_figures(const std::filesystem::path& report) {
  std::ifstream file(report);
  if (!file) throw system_error(fmt::format("cannot read report {}", report.string()), errno);
  try {
    const auto json = nlohmann::json::parse(file);
    const auto& accuracy = json.at("test_accuracy");
    RunFigures figures{
        json.at("samples_per_s").get<double>(),
        accuracy.is_null() ? std::numeric_limits<double>::quiet_NaN() : accuracy.get<double>()};
    if (json.contains("fastest_alone")) {
      figures.fastest_rank = json.at("fastest_alone").at("rank").get<int>();
      figures.fastest_time = json.at("fastest_alone").at("time").get<std::string>();
    }
    return figures;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("report {}: {}", report.string(), error.what()));
  }
}

nlohmann::ordered_json json_of(const DemoFigures& figures) {
  auto alone = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < figures.workers.size(); ++i) {
    alone.push_back(
        {{"worker", figures.workers[i]}, {"samples_per_s", figures.alone[i].samples_per_s}});
  }
  const auto json_of_run = [](const RunFigures& run) {
    nlohmann::ordered_json json = {{"samples_per_s", run.samples_per_s}};
    if (!std::isnan(run.test_accuracy)) json["test_accuracy"] = run.test_accuracy;
    return json;
  };
  return {{"alone", alone},
          {"equal", json_of_run(figures.equal)},
          {"balanced", json_of_run(figures.balanced)}};
}

/// Made in the system's place for temporary files, readable by this user alone; removed with all
/// that is in it when destroyed. Error(System) if it cannot be made.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    auto pattern = (std::filesystem::temp_directory_path() / "bimetal-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw system_error("cannot make a temporary folder " + pattern, errno);
    }
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

class Demo {
 public:
  explicit Demo(const DemoArguments& arguments)
      : arguments_(arguments),
        pace_(arguments.quick ? kQuick : kFull),
        job_(job::parse_job(kDemoJob, "the demo's job")),
        workers_(choose_workers(arguments.workers, job_)) {}

  void run() {
    introduce();
    DemoFigures figures;
    figures.workers = workers_;
    for (const auto& worker : workers_) {
      say(fmt::format("How fast is {} alone?", worker));
      figures.alone.push_back(short_run({worker}));
    }
    say("All of them, each with the same part of every batch: the slowest sets the pace.");
    figures.equal = short_run(workers_);
    say("All of them, balanced: each gets the part that it can do in the same time.");
    figures.balanced = balanced_run(figures.alone);
    if (arguments_.json) return print_json(json_of(figures));
    terminal_.print("");
    print_demo_table(terminal_, figures);
  }

 private:
  void introduce() {
    terminal_.print(terminal_.coloured(Colour::bold, "One model, trained on unequal workers"));
    terminal_.print(fmt::format("model {}, data {}, {} images per step; workers {}",
                                job_.model.name, job_.data.name, job_.train.global_batch,
                                fmt::join(workers_, " and ")));
    terminal_.print(
        "(A worker with speed=0.25 pauses after each piece of work, which makes it a "
        "quarter as fast.)");
  }

  void say(const std::string& text) {
    terminal_.print("");
    terminal_.print(terminal_.coloured(Colour::bold, text));
  }

  RunFigures run_job(const RankRequest& request, const std::vector<std::string>& workers) {
    const int status = run_local_job({request, workers}, signals_);
    if (status != kSuccess) throw Stopped{status};
    return read_run_figures(request.report);
  }

  /// Some seconds with equal shares: no evaluation and no checkpoint, the figures alone matter.
  RunFigures short_run(const std::vector<std::string>& workers) {
    auto job = job_;
    job.train.epochs = 1'000'000;
    job.train.evaluate = false;
    job.checkpoint.dir.clear();
    job.parallel.balance = balance::Policy::Equal;
    const auto figures = run_job({.job = job,
                                  .report = (folder_.path() / "report.json").string(),
                                  .summary = false,
                                  .stop_after_s = pace_.short_run_s},
                                 workers);
    terminal_.print(fmt::format("{:.0f} images/s", figures.samples_per_s));
    return figures;
  }

  RunFigures balanced_run(const std::vector<RunFigures>& alone) {
    const double images_per_s = std::accumulate(
        alone.begin(), alone.end(), 0.0,
        [](double sum, const RunFigures& figures) { return sum + figures.samples_per_s; });
    auto job = job_;
    job.parallel.balance = balance::Policy::Auto;
    job.train.epochs = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(pace_.balanced_run_s * images_per_s / kTrainingImages), 1,
        job_.train.epochs);
    return run_job({.job = job, .report = report_of_balanced_run()}, workers_);
  }

  std::string report_of_balanced_run() const {
    if (!arguments_.report.empty()) return arguments_.report;
    return (folder_.path() / "report.json").string();
  }

  const DemoArguments& arguments_;
  Pace pace_;
  job::JobConfig job_;
  std::vector<std::string> workers_;
  launch::SignalWatch signals_;
  TemporaryFolder folder_;
  Terminal terminal_;
};

int demo_command(const DemoArguments& arguments) {
  if (arguments.json) keep_output_for_json();
  try {
    Demo(arguments).run();
    return kSuccess;
  } catch (const Stopped& stopped) {
    return stopped.status;
  }
}

}  // namespace

void add_demo(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<DemoArguments>();
  auto* command = app.add_subcommand(
      "demo", "Show what balancing is worth: each worker alone, equal split, balanced split");
  command->add_flag("--quick", arguments->quick, "One epoch and shorter runs");
  command
      ->add_option("--worker", arguments->workers,
                   "A worker; may be repeated (default: one thread, and one at a quarter speed)")
      ->type_name("SPEC")
      ->allow_extra_args(false);
  command->add_option("--report", arguments->report, "Write the balanced run's figures here")
      ->type_name("FILE.json");
  command->add_flag("--json", arguments->json,
                    "Print the table as JSON; progress goes to standard error");
  command->footer(kDemoExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return demo_command(*arguments); }; });
}

}  // namespace bimetal::cli
