#pragma once
// The subcommands. Each one's file adds it to the application and sets `action`, which main runs
// once the whole command line is known to be right. An action returns the exit status, or throws;
// main prints the error and maps it (terminal.h).

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "bimetal/fabric_bench/report.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/launch/system/environment.h"
#include "bimetal/net/token.h"

namespace bimetal::cli {

using Action = std::function<int()>;

/// The token of --token-file, else of BIMETAL_TOKEN_FILE or BIMETAL_TOKEN, else none.
inline net::Token read_token(const std::string& token_file) {
  return token_file.empty() ? net::Token::from_environment() : net::Token::from_file(token_file);
}

/// The flag --encrypt, for this process and the ranks that it starts.
inline void add_encrypt(CLI::App& command, const std::string& group) {
  command
      .add_flag_callback(
          "--encrypt", [] { launch::set_environment_variable("BIMETAL_ENCRYPTION", "on"); },
          "Encrypt all connections of the job; the same on every machine")
      ->group(group);
}

/// All that this program has, in the order of --help: commands.cpp, start/main.cpp.
void add_commands(CLI::App& app, Action& action);

struct RankRequest;
/// As run_rank(); none in a program without libtorch.
using RunRank = std::function<int(const launch::RankEnvironment& env, const RankRequest& request)>;

/// A job on this machine's workers, one rank of a job that something else started, or the host of a
/// job on several machines. Without `run_rank` such a rank becomes the whole program.
void add_train(CLI::App& app, Action& action, RunRank run_rank);
/// This machine's workers become part of a job that waits on another machine.
void add_join(CLI::App& app, Action& action);
/// Whether it is worth to share a job over these workers.
void add_plan(CLI::App& app, Action& action, RunRank run_rank);
/// A job file with every key that it leaves out, and with what --set changes.
void add_show_job(CLI::App& app, Action& action);
/// The hidden subcommand that these, `generate` and `evaluate` start.
void add_rank(CLI::App& app, Action& action);

void add_evaluate(CLI::App& app, Action& action);
void add_predict(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
/// A checkpoint's weights for other programs.
void add_export(CLI::App& app, Action& action);
/// Shows the contents of checkpoints, and puts slices together.
void add_checkpoint(CLI::App& app, Action& action);

/// Shows this machine's devices, and how fast they are.
void add_devices(CLI::App& app, Action& action);
/// Measures the fabric between this job's ranks. `join`: how this program's ranks meet.
void add_bench(CLI::App& app, Action& action, fabric_bench::Join join);
/// Any command as ranks; also the hidden subcommands by which it runs itself on each host.
void add_launch(CLI::App& app, Action& action);
/// The words for `launch`, with a "--" put before its command, whose options are its own.
std::vector<std::string> with_command_apart(const CLI::App& app, std::vector<std::string> words);
/// The shared secret of a job on several machines.
void add_token(CLI::App& app, Action& action);
/// Those that are let into shared jobs without a code.
void add_machines(CLI::App& app, Action& action);
/// For bimetal.ray, not for people.
void add_pair(CLI::App& app, Action& action);
/// How a running job gets on, live.
void add_top(CLI::App& app, Action& action);
/// Trainings that were, and are.
void add_runs(CLI::App& app, Action& action);
/// One model on unequal workers.
void add_demo(CLI::App& app, Action& action);
/// Writes --help as completion for shells and as manual pages. Add it after all others.
void add_reference(CLI::App& app, Action& action);
/// The commands written in Python: data, doctor, ray, tune, ensemble.
void add_python_commands(CLI::App& app, Action& action);

}  // namespace bimetal::cli
