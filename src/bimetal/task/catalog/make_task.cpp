#include <fmt/format.h>

#include "bimetal/base/error.h"
#include "bimetal/data/held_out.h"
#include "bimetal/device/device.h"
#include "bimetal/models/language/language_config.h"
#include "bimetal/task/catalog/held_out_task.h"
#include "bimetal/task/catalog/image_classification.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/catalog/language_modeling.h"

namespace bimetal::task {
namespace {

std::shared_ptr<const JobTask> make_language_modeling(const job::JobConfig& job,
                                                      const data::DatasetFiles& files) {
  // The model's sizes do not hang on the data, but for the vocabulary: it is known once the data
  // is.
  const auto context = language_model_of(job.model, 1).context;
  const bool of_images = job.data.augment || !job.data.mean.empty() || !job.data.stddev.empty();
  if (job.data.bootstrap_seed != 0 || of_images) {
    throw Error(
        ErrorCode::InvalidArgument,
        "data.bootstrap_seed, data.augment, data.mean and data.stddev are for images: leave "
        "them out for data.name = \"tokens\"");
  }
  auto data =
      data::load_tokens(files, job.data.block > 0 ? job.data.block : context, job.data.documents);
  const auto model = language_model_of(job.model, data.train->vocabulary());
  return std::make_shared<LanguageModeling>(job.model.name, model, std::move(data), job.train.dtype,
                                            job.model.weights);
}

data::LoadOptions load_options(const job::DataConfig& config) {
  if (config.name != data::kImageFolders && (config.image_size > 0 || config.skip_broken)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("data.image_size and data.skip_broken are for folders of images: leave "
                            "them out for data.name = \"{}\"",
                            config.name));
  }
  data::LoadOptions options{
      .skip_broken = config.skip_broken, .mean = config.mean, .stddev = config.stddev};
  if (config.image_size > 0) options.image_size = config.image_size;
  return options;
}

std::shared_ptr<const JobTask> make_image_classification(const job::JobConfig& job,
                                                         const data::DatasetFiles& files) {
  if (models::is_language_model(job.model.name)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("model.name = \"{}\" is a language model, but data.name = \"{}\" is "
                            "images: take data.name = \"tokens\", or a model of images",
                            job.model.name, job.data.name));
  }
  auto data = data::load_dataset(files, load_options(job.data));
  const bool draws =
      job.data.bootstrap_seed != 0 && job.data.validation == 0;  // else hold_out does
  if (draws) data.train = data::bootstrap(data.train, job.data.bootstrap_seed);
  return std::make_shared<ImageClassification>(
      job.model.name, job.model.hidden, std::move(data), job.train.dtype,
      job.data.augment ? data::Augment::Yes : data::Augment::No, job::sample_group(job));
}

std::shared_ptr<const JobTask> make_whole_task(const job::JobConfig& job,
                                               const data::DatasetFiles& files) {
  if (is_python_task(job)) return make_python_task(job);
  return job.data.name == "tokens" ? make_language_modeling(job, files)
                                   : make_image_classification(job, files);
}

}  // namespace

std::shared_ptr<const JobTask> make_task(const job::JobConfig& job,
                                         const data::DatasetFiles& files) {
  auto task = make_whole_task(job, files);
  return job.data.validation > 0 ? hold_out(std::move(task), job.data) : task;
}

}  // namespace bimetal::task
