#pragma once
// bimetal plan: is it worth to share this job over these workers? Starts them as train does,
// measures, and tells.

#include <string>
#include <vector>

#include "bimetal/cli/command.h"

namespace bimetal::cli {

struct PlanArguments {
  std::string job, deepspeed;
  std::vector<std::string> set;      ///< "section.key=value"
  std::vector<std::string> workers;  ///< worker specs
  bool json = false;
  bool details = false;  ///< tables, too
  std::string simulate;  ///< a file that describes a cluster; empty: this one is planned
  std::string timeline;  ///< where a picture of a step goes; empty: none
};

int plan_command(const PlanArguments& arguments);

void add_plan(CLI::App& app, Action& action);

/// The hidden subcommand that its ranks run.
void add_plan_rank(CLI::App& app, Action& action);

}  // namespace bimetal::cli
