// The command line program as a function, for a process that is Python's.

#include "bimetal/cli/program.h"

#include <string>
#include <vector>

#include "bimetal/cli/terminal.h"
#include "bimetal/python/bindings.h"
#include "bimetal/python/hosted_task.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/dropout.h"

namespace bimetal::python {
namespace {

/// Without Python's lock, which autograd and the program's threads take as they need it.
int run_program(std::vector<std::string> arguments) {
  task::set_python_task_maker(host_task);
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  return cli::run_program(static_cast<int>(arguments.size()), pointers.data(),
                          cli::Process::is_pythons);
}

}  // namespace

void bind_program(Bindings& bindings) {
  bindings.function("run_program", run_program);
  bindings.function("note_output", [](const std::string& line) { cli::note_output(line); });
  bindings.function(
      "in_a_step", [] { return task::current_draws() != nullptr; }, Lock::kept);
  bindings.function("dropout_by_sample", [](const torch::Tensor& x, double p, std::int64_t layer) {
    return task::dropout_by_sample(x, p, layer);
  });
}

}  // namespace bimetal::python
