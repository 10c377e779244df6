#include <chrono>
#include <optional>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/c10d/make_backend.h"
#include "bimetal/c10d/worlds.h"
#include "bimetal/device/device.h"
#include "bimetal/device/host.h"
#include "bimetal/launch/local/launcher_watch.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

namespace py = pybind11;

BackendPtr make_backend(const ::c10d::DistributedBackendOptions& place, const BackendPtr& world) {
  using std::chrono::milliseconds;
  launch::end_with_launcher();
  auto options = c10::make_intrusive<c10d::BackendOptions>(
      std::chrono::duration_cast<milliseconds>(place.timeout));
  options->group_name = place.group_id;
  options->global_ranks_in_group.assign(place.global_ranks_in_group.begin(),
                                        place.global_ranks_in_group.end());
  const auto shared = world ? std::optional(group_of(world)) : std::nullopt;
  return c10d::make_backend(place.store, place.group_rank, place.group_size, std::move(options),
                            shared);
}

std::string device_for(const std::string& spec, int local_rank) {
  return device::select_device(job::parse_worker_spec(spec), local_rank).str();
}

}  // namespace

const comm::Group& group_of(const BackendPtr& backend) {
  const auto* ours = dynamic_cast<const c10d::BimetalBackend*>(backend.get());
  if (ours == nullptr) {
    throw Error(ErrorCode::InvalidArgument,
                "this process group's backend is " + backend->getBackendName() + ", not bimetal");
  }
  return ours->group();
}

void bind_process_groups(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  module.def("make_backend", make_backend, py::arg("place"), py::arg("world") = py::none(), no_gil);
  module.def("end_with_launcher", launch::end_with_launcher, no_gil);
  module.def(
      "close_all",
      [](double seconds) {
        c10d::worlds::close_all(
            Deadline::after(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9))));
      },
      py::arg("seconds"), no_gil);
  module.def(
      "flight_recorder",
      [](const BackendPtr& backend) { return group_of(backend).flight_recorder(); },
      py::arg("backend"), no_gil);
  module.def(
      "bytes_sent", [](const BackendPtr& backend) { return group_of(backend).bytes_sent(); },
      py::arg("backend"), no_gil);
  module.def(
      "transport",
      [](const BackendPtr& backend) {
        return std::string(comm::to_string(group_of(backend).transport()));
      },
      py::arg("backend"), no_gil);
  module.def("device", device_for, py::arg("spec"), py::arg("local_rank"));
  module.def("usable_cores", device::usable_cores);
}

}  // namespace bimetal::python
