#pragma once
// Tasks written in Python. What makes them is not in this library but in the extension module that
// runs the program inside of Python (python_host/), which announces itself here.

#include <functional>
#include <memory>

#include "bimetal/job/job_config.h"
#include "bimetal/task/catalog/job_task.h"

namespace bimetal::task {

/// Makes the task that job.model.python names. Errors: InvalidArgument with Python's traceback.
using PythonTaskMaker = std::function<std::shared_ptr<const JobTask>(const job::JobConfig& job)>;

/// Before any task is made; empty: this process has no Python (any more). Not for several threads.
void set_python_task_maker(PythonTaskMaker maker);

bool has_python_task_maker() noexcept;

/// True if the job's task is written in Python, and so brings its own data.
bool is_python_task(const job::JobConfig& job) noexcept;

/// By the maker. Error(Unsupported) if there is none.
std::shared_ptr<const JobTask> make_python_task(const job::JobConfig& job);

}  // namespace bimetal::task
