// fabric_bench: the fabric's benchmark as a program without libtorch. `bimetal bench` is the same.

#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/fabric_bench/report.h"

namespace {

// Any error but one of usage ends in one status: scripts read the message.
constexpr int kUsage = 2;
constexpr int kFailure = 3;

/// Writes the messages that BIMETAL_DEBUG asks for to standard error.
void show_log() {
  const auto level = bimetal::log_level_from_environment();
  if (!level) return;
  bimetal::set_log_sink(
      [](bimetal::LogLevel of, std::string_view message) {
        fmt::print(stderr, "fabric_bench: {}: {}\n", bimetal::to_string(of), message);
      },
      *level);
}

int exit_status(bimetal::ErrorCode code) {
  return code == bimetal::ErrorCode::InvalidArgument ? kUsage : kFailure;
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  CLI::App app("Measures the fabric's collectives, as nccl-tests does NCCL's.", "fabric_bench");
  bimetal::fabric_bench::BenchOptions options;
  bimetal::fabric_bench::add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  try {
    show_log();
    const auto join = [](const auto& env, const auto& joining) {
      return bimetal::launch::meet(env, joining);
    };
    return bimetal::fabric_bench::run_bench(options, {{}, join, exit_status});
  } catch (const bimetal::Error& error) {
    fmt::print(stderr, "fabric_bench: error: {}\n", error.what());
    return exit_status(error.code());
  }
}
