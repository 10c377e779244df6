#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <sstream>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/cli/fabric/launch_task.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/local/pipe.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/meet.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/launch/system/environment.h"

namespace bimetal::cli {
namespace {

constexpr std::chrono::seconds kPatienceToMeet{120};
constexpr std::chrono::milliseconds kPollEvery{200};
/// Far from the low numbers under which mpirun's process manager may be reached.
constexpr int kMeetingDescriptor = 100;

/// As a process of its own. One that is killed is to mpirun one that has ended with a status: to
/// MPICH's the former ends all others, whatever its options say.
int stay_with(const std::vector<std::string>& command, const launch::NamedValues& variables) {
  launch::SignalWatch signals;
  auto child = launch::Process::start({launch::runnable(command), variables, {}, true});
  std::optional<launch::ProcessExit> exit;
  for (int told = 0; !(exit = child.poll()); signals.pause(kPollEvery)) {
    if (signals.stop_requests() > told) child.send(signals.first_signal());
    told = signals.stop_requests();
  }
  return exit->signal != 0 ? 128 + exit->signal : exit->status;
}

int become(const std::vector<std::string>& command, const launch::NamedValues& variables) {
  if (launch::environment_variable(launch::kElasticVariable)) return stay_with(command, variables);
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  const auto words = launch::runnable(command);
  const auto& program = words.front();
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  // Settings that main has made for this program are not for the other one.
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  ::execv(program.c_str(), arguments.data());
  throw system_error("cannot run " + program, errno);
}

/// The child's results: NAME=VALUE lines.
launch::NamedValues read_variables(const std::string& text) {
  launch::NamedValues variables;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (equals != std::string::npos) {
      variables.emplace_back(line.substr(0, equals), line.substr(equals + 1));
    }
  }
  return variables;
}

int become_slurm_task(const std::vector<std::string>& command) {
  const auto task = launch::slurm_task();
  if (!task) {
    throw Error(ErrorCode::InvalidArgument,
                "--slurm is for tasks of a job step, and srun has not started this process; run: "
                "srun bimetal launch --slurm -- COMMAND");
  }
  auto variables = launch::rank_variables(task->place);
  const auto master = launch::master_variables(task->master.host, task->master.port);
  variables.insert(variables.end(), master.begin(), master.end());
  return become(command, variables);
}

int become_mpi_process(const std::vector<std::string>& command) {
  auto pipe = launch::Pipe::create();
  // MPI ends with the child, so that the command may use MPI itself.
  auto child = launch::Process::start({{launch::own_program().string(), "launch-mpi-meeting"},
                                       {{"BIMETAL_TRANSPORT", "mpi"}},
                                       {{kMeetingDescriptor, pipe.write.number()}},
                                       true});
  pipe.write.close();
  launch::set_nonblocking(pipe.read);
  const auto deadline = Deadline::after(2 * kPatienceToMeet);
  std::optional<launch::ProcessExit> exit;
  while (!(exit = child.poll()) && !deadline.expired()) ::usleep(5000);
  if (!exit) {
    throw Error(ErrorCode::Timeout, "the processes of mpirun did not meet through MPI in time");
  }
  // It has told the user why.
  if (exit->signal != 0) return 128 + exit->signal;
  if (exit->status != 0) return exit->status;
  std::string text;
  launch::read_available(pipe.read, text);
  return become(command, read_variables(text));
}

}  // namespace

void add_starter_options(CLI::App& command, Starter& starter,
                         const std::vector<CLI::Option*>& places) {
  auto* slurm = command.add_flag("--slurm", starter.slurm,
                                 "This process is a task of srun: become the rank that it is");
  auto* mpi = command.add_flag("--mpi", starter.mpi,
                               "The same for a process that mpirun or mpiexec has started");
  slurm->excludes(mpi);
  for (auto* engine : {slurm, mpi}) {
    for (auto* place : places) engine->excludes(place);
  }
}

std::optional<int> follow_starter(const Starter& starter, const std::vector<std::string>& command) {
  if (starter.slurm) return become_slurm_task(command);
  if (starter.mpi) return become_mpi_process(command);
  return std::nullopt;
}

void add_mpi_meeting(CLI::App& app, Action& action) {
  auto* command =
      app.add_subcommand("launch-mpi-meeting", "Finds out the ranks for `launch --mpi`");
  command->group("");  // not for people
  command->callback([&action] {
    action = [] {
      std::string text;
      for (const auto& [name, value] : launch::meet_by_mpi(Deadline::after(kPatienceToMeet))) {
        text += fmt::format("{}={}\n", name, value);
      }
      const launch::FileDescriptor result(kMeetingDescriptor);
      return launch::write_all(result, text) ? kSuccess : exit_status(ErrorCode::System);
    };
  });
}

}  // namespace bimetal::cli
