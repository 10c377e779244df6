#include "bimetal/task/task.h"

namespace bimetal::task {

Values Task::inputs(const Values& batch) const {
  return batch.empty() ? Values() : Values(batch.begin(), batch.end() - 1);
}

}  // namespace bimetal::task
