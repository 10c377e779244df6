#include "bimetal/data/bootstrap.h"
#include "bimetal/device/place.h"
#include "bimetal/task/catalog/image_classification.h"
#include "bimetal/task/catalog/job_task.h"

namespace bimetal::task {

std::shared_ptr<const JobTask> make_task(const job::JobConfig& job,
                                         const data::DatasetFiles& files) {
  auto data = data::load_dataset(files);
  if (const auto seed = job.data.bootstrap_seed) data.train = data::bootstrap(data.train, seed);
  return std::make_shared<ImageClassification>(job.model.name, job.model.hidden, std::move(data),
                                               job.train.dtype);
}

}  // namespace bimetal::task
