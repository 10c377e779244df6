#include "bimetal/base/files.h"

#include <pybind11/stl.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/base/os_files.h"
#include "bimetal/base/temporary_path.h"
#include "bimetal/python/bindings.h"
#include "bimetal/rendezvous/member_record.h"

namespace bimetal::python {
namespace {

namespace fs = std::filesystem;
namespace py = pybind11;

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& target)
      : folder_(std::make_unique<TemporaryPath>(target, TemporaryPath::Kind::folder)) {}
  ~TemporaryFolder() { remove(); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path() const { return required().path().string(); }
  void move_into_place() const { required().move_into_place(); }

  /// A process that has been forked off (a DataLoader's worker) leaves its parent's alone.
  void remove() {
    if (rendezvous::own_process_id() != owner_) static_cast<void>(folder_.release());
    folder_.reset();
  }

 private:
  TemporaryPath& required() const {
    if (folder_) return *folder_;
    throw Error(ErrorCode::InvalidArgument, "the temporary folder has been removed");
  }

  std::unique_ptr<TemporaryPath> folder_;
  const std::uint64_t owner_ = rendezvous::own_process_id();
};

void sync_path(const std::string& path) {
  if (fs::is_directory(path)) return sync_directory(path);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb+"),
                                                             std::fclose);
  if (!file) throw system_error("cannot write " + path, errno);
  sync_file(file.get(), path);
}

}  // namespace

void bind_files(py::module_& module) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<TemporaryFolder>(module, "TemporaryFolder")
      .def(py::init<const std::string&>(), py::arg("target"), NoGil())
      .def_property_readonly("path", &TemporaryFolder::path)
      .def("move_into_place", &TemporaryFolder::move_into_place, NoGil())
      .def("remove", &TemporaryFolder::remove, NoGil());
  module.def(
      "remove_leftovers",
      [](const std::string& folder, const std::optional<std::string>& name, bool numbering) {
        const auto of_name = numbering ? Leftovers::of_numbering : Leftovers::of_name;
        remove_leftovers(folder, name.value_or(""), name ? of_name : Leftovers::of_all);
      },
      py::arg("folder"), py::arg("name") = py::none(), py::arg("numbering") = false, NoGil());
  module.def("sync_path", sync_path, py::arg("path"), NoGil());
  module.def(
      "write_file_atomically",
      [](const std::string& path, const std::string& contents) {
        write_file_atomically(path, contents);
      },
      py::arg("path"), py::arg("contents"), NoGil());
}

}  // namespace bimetal::python
