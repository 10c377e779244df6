#include "bimetal/task/catalog/unit_operations.h"

#include "bimetal/models/language/operations.h"

namespace bimetal::task {

std::vector<double> unit_operations(const JobTask& task) {
  const auto& language = task.description().language;
  if (!language) return {};
  return models::forward_operations(*language, typical_weight(*task.training()));
}

}  // namespace bimetal::task
