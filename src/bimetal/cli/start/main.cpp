// The program `bimetal`: see program.h.

#include "bimetal/cli/command.h"
#include "bimetal/cli/program.h"

namespace bimetal::cli {

void add_commands(CLI::App& app, Action& action) {
  add_train(app, action, {});
  add_join(app, action);
  add_launch(app, action);
  add_show_job(app, action);
  add_plan(app, action, {});
  add_demo(app, action);
  add_top(app, action);
  add_runs(app, action);
  add_token(app, action);
  add_machines(app, action);
  add_pair(app, action);
  add_python_commands(app, action);
}

}  // namespace bimetal::cli

int main(int argc, char** argv) {
  return bimetal::cli::run_program(argc, argv, bimetal::cli::Process::starts_others);
}
