#include "bimetal/cli/command.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/launch/meet.h"

namespace bimetal::cli {

void add_commands(CLI::App& app, Action& action) {
  add_train(app, action, run_rank);
  add_join(app, action);
  add_launch(app, action);
  add_evaluate(app, action);
  add_serve(app, action);
  add_predict(app, action);
  add_generate(app, action);
  add_export(app, action);
  add_checkpoint(app, action);
  add_show_job(app, action);
  add_plan(app, action, run_rank);
  add_devices(app, action);
  add_bench(app, action, launch::join_world);
  add_demo(app, action);
  add_top(app, action);
  add_runs(app, action);
  add_token(app, action);
  add_machines(app, action);
  add_pair(app, action);
  add_python_commands(app, action);
  add_rank(app, action);
  add_reference(app, action);
}

}  // namespace bimetal::cli
