// The functions by which Python's ctypes comes in, as C has them. Called with Python's lock held
// (ctypes.PyDLL).

#include <string>
#include <vector>

#include "bimetal/capi/boundary.h"
#include "bimetal/cli/program.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/device/host.h"
#include "bimetal/python/bindings.h"
#include "bimetal/python/hosted_task.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/dropout.h"

namespace bimetal::python {
namespace {

void bind_process_groups(Bindings& bindings) {
  const auto group_at = [](std::uint64_t handle, double seconds) {
    using std::chrono::milliseconds;
    return std::make_unique<ProcessGroup>(reinterpret_cast<const bimetal_group*>(handle)->group,
                                          milliseconds(static_cast<std::int64_t>(seconds * 1e3)));
  };
  Bindings::Class<ProcessGroup>(bindings, "ProcessGroup").made_by(group_at);
  bindings.function("usable_cores", device::usable_cores);
  bindings.function("set_error_class", set_error_class, Lock::kept);
}

const Bindings& everything() {
  static const Bindings bindings = [] {
    Bindings all;
    bind_process_groups(all);
    bind_checkpoints(all);
    bind_deepspeed(all);
    bind_sharding(all);
    bind_pipeline(all);
    bind_tensor(all);
    bind_optimizers(all);
    bind_serving(all);
    bind_monitor(all);
    bind_program(all);
    return all;
  }();
  return bindings;
}

}  // namespace
}  // namespace bimetal::python

extern "C" {

/// The names, a line each, in the order of their numbers: "function", "Class()" for a constructor,
/// "Class.method" and "Class.=property".
BIMETAL_C const char* bimetal_torch_names() {
  static const std::string names = [] {
    std::string lines;
    for (const auto& one : bimetal::python::everything().all()) lines += one.name + "\n";
    return lines;
  }();
  return names.c_str();
}

/// Calls a function with a tuple of its arguments. `object`: for a method the object that the
/// class's "()" has given, otherwise None. Gives a new reference, or NULL with an exception raised.
BIMETAL_C PyObject* bimetal_torch_call(std::int32_t number, PyObject* object, PyObject* arguments) {
  try {
    const auto& named = bimetal::python::everything().all()[static_cast<std::size_t>(number)];
    return named.call(object, arguments).release();
  } catch (...) {
    bimetal::python::raise_as_python(std::current_exception());
    return nullptr;
  }
}

}  // extern "C"

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
