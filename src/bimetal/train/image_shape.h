#pragma once
// The shape that a model must have to take a data set's images.

#include "bimetal/data/dataset.h"
#include "bimetal/models/registry.h"

namespace bimetal::train {

inline models::ImageShape image_shape(const data::ImageDataset& dataset) {
  return {.channels = dataset.images.size(1),
          .height = dataset.images.size(2),
          .width = dataset.images.size(3),
          .classes = dataset.classes};
}

}  // namespace bimetal::train
