#include "bimetal/cli/fabric/launch_task.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::cli {

void add_starter_options(CLI::App& command, Starter& starter, const std::vector<CLI::Option*>&) {
  command.add_option("--front", starter.front, "End when this process does")->group("");
}

std::optional<int> follow_starter(const Starter& starter, const std::vector<std::string>&) {
  if (starter.front != 0) launch::end_with_process(starter.front);
  return std::nullopt;
}

void add_mpi_meeting(CLI::App&, Action&) {}

}  // namespace bimetal::cli
