#include <cstdint>

#include "bimetal/capi/boundary.h"
#include "bimetal/device/device.h"
#include "bimetal/device/host.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

namespace py = pybind11;

ProcessGroup group_at(std::uintptr_t handle, double seconds) {
  using std::chrono::milliseconds;
  return {.group = reinterpret_cast<const bimetal_group*>(handle)->group,
          .timeout = milliseconds(static_cast<std::int64_t>(seconds * 1e3))};
}

}  // namespace

void bind_process_groups(py::module_& module) {
  py::class_<ProcessGroup>(module, "ProcessGroup")
      .def(py::init(&group_at), py::arg("handle"), py::arg("seconds"));
  module.def("usable_cores", device::usable_cores);
}

}  // namespace bimetal::python
