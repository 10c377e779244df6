// The functions by which Python's ctypes comes in, as C has them. Called with Python's lock held
// (ctypes.PyDLL).

#include "bimetal/capi/boundary.h"
#include "bimetal/device/host.h"
#include "bimetal/python/bindings.h"

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
