#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

constexpr const char* kRunRecord = "training.json";  // what a training leaves of itself
constexpr const char* kUnknownFigure = "–";
constexpr std::chrono::seconds kLostAfter{60};  // a running one writes every few seconds

struct ListedRun {
  std::filesystem::path folder;
  std::filesystem::file_time_type changed;
  std::string state = "unknown", where = {};
  std::int64_t step = 0, steps = 0;
  std::optional<double> loss = {};
};

/// The newest step of checkpoints, by their names; -1: there are none.
std::int64_t newest_step(const std::filesystem::path& folder) {
  std::int64_t newest = -1;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const auto name = entry.path().filename().string();
    long step = -1;
    if (std::sscanf(name.c_str(), "step-%18ld", &step) == 1) {
      newest = std::max<std::int64_t>(newest, step);
    }
  }
  return newest;
}

/// What the record says; one that is damaged says nothing.
void read_run(ListedRun& run, const std::filesystem::path& file) {
  std::ifstream stream(file);
  const auto json = nlohmann::json::parse(stream, nullptr, false);
  if (!json.is_object()) return;
  try {
    run.state = json.at("state");
    run.step = json.at("step");
    run.steps = json.at("steps");
    if (json.at("loss").is_number()) run.loss = json.at("loss").get<double>();
    run.where = json.at("host");
    if (const std::string at = json.at("address"); !at.empty()) run.where += ", page at " + at;
  } catch (const nlohmann::json::exception&) {
    return;
  }
  const auto silent = std::filesystem::file_time_type::clock::now() - run.changed;
  if (run.state == "running" && silent > kLostAfter) run.state = "lost";
}

/// Of the folders in `parent` those of trainings, the last changed first.
std::vector<ListedRun> runs_in(const std::filesystem::path& parent) {
  std::error_code none;
  if (!std::filesystem::is_directory(parent, none)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("there is no folder {}: `bimetal runs DIR` takes the one in which the "
                            "folders of checkpoints lie",
                            parent.string()));
  }
  std::vector<ListedRun> runs;
  for (const auto& entry : std::filesystem::directory_iterator(parent, none)) {
    const auto record = entry.path() / kRunRecord;
    const bool recorded = std::filesystem::is_regular_file(record, none);
    const auto step = newest_step(entry.path());
    if (!recorded && step < 0) continue;
    ListedRun run{
        .folder = entry.path(),
        .changed = std::filesystem::last_write_time(recorded ? record : entry.path(), none),
        .step = std::max<std::int64_t>(step, 0)};
    if (recorded) read_run(run, record);
    runs.push_back(std::move(run));
  }
  std::ranges::sort(runs, std::greater(), &ListedRun::changed);
  return runs;
}

std::string json_of_runs(const std::vector<ListedRun>& runs) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& run : runs) {
    list.push_back({{"folder", run.folder.string()},
                    {"state", run.state},
                    {"step", run.step},
                    {"steps", run.steps},
                    {"loss", run.loss ? nlohmann::ordered_json(*run.loss) : nullptr},
                    {"where", run.where}});
  }
  return list.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

int list_runs_of(const std::string& parent, bool json) {
  const auto runs = runs_in(parent);
  if (json) {
    write_to(stdout, json_of_runs(runs));
    return kSuccess;
  }
  std::vector<TableRow> rows = {{"run", "state", "where", "step", "loss"}};
  for (const auto& run : runs) {
    rows.push_back(
        {run.folder.filename().string(), run.state, run.where.empty() ? kUnknownFigure : run.where,
         run.steps > 0 ? fmt::format("{}/{}", run.step, run.steps) : std::to_string(run.step),
         run.loss ? fmt::format("{:.4f}", *run.loss) : kUnknownFigure});
  }
  Terminal terminal;
  for (const auto& line : aligned(rows, 3)) terminal.print(line);
  return kSuccess;
}

}  // namespace

void add_runs(CLI::App& app, Action& action) {
  struct Arguments {
    std::string parent = "runs";
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("runs", "List trainings: state, steps, loss, where");
  command->add_option("folder", arguments->parent, "In which the folders of their checkpoints lie")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print JSON instead of a table");
  command->callback([arguments, &action] {
    action = [arguments] { return list_runs_of(arguments->parent, arguments->json); };
  });
}

}  // namespace bimetal::cli
