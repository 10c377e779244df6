#include <memory>
#include <utility>

#include "bimetal/cli/command.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

constexpr const char* kBenchExamples = R"(Examples:
  bimetal bench allreduce --ranks 2
  bimetal bench broadcast --ranks 4 --min 1mb --max 64mb --json
Under mpirun, torchrun, srun or any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT,
run it on every rank. "alg" is size ÷ time; "bus" is what the busiest link carries at best.)";

}  // namespace

void add_bench(CLI::App& app, Action& action, fabric_bench::Join join) {
  auto options = std::make_shared<fabric_bench::BenchOptions>();
  auto* command = app.add_subcommand("bench", "Measure the collectives between ranks");
  fabric_bench::add_options(*command, *options);
  command->footer(kBenchExamples);
  command->callback([options, &action, join = std::move(join)] {
    action = [options, join] {
      return fabric_bench::run_bench(*options, {{"bench"}, join, exit_status});
    };
  });
}

}  // namespace bimetal::cli
