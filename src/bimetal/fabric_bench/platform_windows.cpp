#include <fmt/format.h>
#include <windows.h>

#include <filesystem>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/base/unicode/utf8.h"
#include "bimetal/fabric_bench/report.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/ssh/host_launcher.h"

namespace bimetal::fabric_bench {

double processor_seconds() {
  FILETIME begun, ended, system, user;
  if (!GetProcessTimes(GetCurrentProcess(), &begun, &ended, &system, &user)) return 0;
  const auto of = [](const FILETIME& time) {  // steps of 100 ns
    return 1e-7 * (4294967296.0 * time.dwHighDateTime + time.dwLowDateTime);
  };
  return of(system) + of(user);
}

// By the launcher of any command, whose agent this program is, too.
int start_ranks(const BenchOptions& options, const BenchProgram& program) {
  launch::HostsPlan plan;
  plan.hosts = launch::place_ranks({{"localhost", options.ranks}}, options.ranks);
  plan.command = {utf8_of_path(launch::own_program())};
  plan.command.insert(plan.command.end(), program.leading_words.begin(),
                      program.leading_words.end());
  const auto words = to_arguments(options);
  plan.command.insert(plan.command.end(), words.begin(), words.end());
  plan.directory = utf8_of_path(std::filesystem::current_path());
  plan.token = net::Token::generate();
  plan.version = release();
  plan.prefixed = false;
  plan.note = [](const std::string&) {};
  launch::SignalWatch signals;
  const auto result = launch::run_on_hosts(plan, signals);
  if (result.interrupted) return launch::kInterruptedStatus;
  if (!result.failure) return 0;
  throw Error(ErrorCode::Aborted,
              fmt::format("rank {} (pid {}) {}; the other ranks were stopped", result.failure->rank,
                          result.failure->pid, launch::how_it_ended(result.failure->exit)));
}

int be_rank(const BenchProgram&, const std::function<void()>& work) {
  work();
  return 0;
}

}  // namespace bimetal::fabric_bench
