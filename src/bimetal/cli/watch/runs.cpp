#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/monitor/run_record.h"

namespace bimetal::cli {
namespace {

using monitor::RunRecord;

constexpr const char* kUnknownFigure = "–";

std::vector<RunRecord> runs_in(const std::filesystem::path& parent) {
  std::error_code none;
  if (!std::filesystem::is_directory(parent, none)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("there is no folder {}: `bimetal runs DIR` takes the one in which the "
                            "folders of checkpoints lie",
                            parent.string()));
  }
  return monitor::list_runs(parent, std::numeric_limits<std::size_t>::max());
}

std::string place_of(const RunRecord& run) {
  return run.address.empty() ? run.host : run.host + ", page at " + run.address;
}

nlohmann::ordered_json json_of_runs(const std::vector<RunRecord>& runs) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& run : runs) {
    list.push_back({{"folder", run.folder.string()},
                    {"state", run.state},
                    {"step", run.step},
                    {"steps", run.steps},
                    {"loss", run.loss ? nlohmann::ordered_json(*run.loss) : nullptr},
                    {"where", place_of(run)}});
  }
  return list;
}

int list_runs_of(const std::string& parent, bool json) {
  const auto runs = runs_in(parent);
  if (json) {
    print_json(json_of_runs(runs));
    return kSuccess;
  }
  std::vector<TableRow> rows = {{"run", "state", "where", "step", "loss"}};
  for (const auto& run : runs) {
    rows.push_back(
        {run.folder.filename().string(), run.state,
         run.host.empty() ? kUnknownFigure : place_of(run),
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
