#include "bimetal/train/model_description.h"

#include <torch/torch.h>

#include "bimetal/train/image_shape.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/starting_point.h"

namespace bimetal::train {

ModelDescription describe_model(const Job& job, const data::ImageDataset& dataset) {
  const auto shape = image_shape(dataset);
  return {.name = job.model.name,
          .hidden = job.model.hidden,
          .channels = shape.channels,
          .height = shape.height,
          .width = shape.width,
          .classes = shape.classes,
          .dtype = job.train.dtype,
          .mean = dataset.mean,
          .stddev = dataset.stddev};
}

std::shared_ptr<models::Classifier> make_described_model(const ModelDescription& description) {
  const auto before = random_state();
  auto model = models::make_model(description.name,
                                  {.channels = description.channels,
                                   .height = description.height,
                                   .width = description.width,
                                   .classes = description.classes},
                                  description.hidden);
  set_random_state(before);
  model->to(dtype_named(description.dtype));
  model->eval();
  return model;
}

}  // namespace bimetal::train
