#include "bimetal/task/catalog/job_task.h"

#include <fmt/format.h>

#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/models/language/language_model.h"

namespace bimetal::task {

std::vector<double> unit_operations(const JobTask& task) {
  const auto& language = task.description().language;
  if (!language) return {};
  return models::forward_operations(*language, typical_weight(*task.training()));
}

namespace {

PythonTaskMaker& known_maker() {
  static PythonTaskMaker maker;
  return maker;
}

}  // namespace

void set_python_task_maker(PythonTaskMaker maker) {
  known_maker() = std::move(maker);
}

bool has_python_task_maker() noexcept {
  return static_cast<bool>(known_maker());
}

bool is_python_task(const job::JobConfig& job) noexcept {
  return !job.model.python.empty();
}

std::shared_ptr<const JobTask> make_python_task(const job::JobConfig& job) {
  if (!has_python_task_maker()) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("model.python = \"{}\" is a task written in Python, and this process "
                            "has no Python: run the program bimetal, or python -m bimetal.program",
                            job.model.python));
  }
  return known_maker()(job);
}

}  // namespace bimetal::task
