#pragma once
// bimetal train: a job on this machine's workers, one rank of a job that something else started, or
// the host of a job on several machines.

#include <optional>
#include <string>
#include <vector>

#include "bimetal/cli/command.h"

namespace bimetal::cli {

struct TrainArguments {
  std::string job, deepspeed;
  std::vector<std::string> set;      ///< "section.key=value"
  std::vector<std::string> workers;  ///< worker specs
  std::string report, resume;
  std::string profile, profile_trace;  ///< "FIRST:LAST", and where the trace goes
  std::optional<double> join_timeout_s;
  std::string monitor, tensorboard;  ///< monitor.listen and monitor.tensorboard_dir
  std::string listen, token_file;    ///< a job of several machines
  int world_size = 0;
  int servers_here = 0;  ///< 0: all
};

int train_command(const TrainArguments& arguments);

void add_train(CLI::App& app, Action& action);

}  // namespace bimetal::cli
