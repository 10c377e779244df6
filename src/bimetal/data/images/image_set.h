#pragma once
// Labelled images as samples of a task.

#include <utility>

#include "bimetal/data/images/dataset.h"
#include "bimetal/task/dataset.h"

namespace bimetal::data {

enum class Augment { No, Yes };

/// A batch is {x, y} of make_batch(): [b, C, H, W] of `dtype`, normalised, and the labels, int64
/// [b]. With Augment::Yes the images are cropped and flipped (augment.h) where a task::DrawScope
/// says for which seed and epoch.
class ImageSet final : public task::Dataset {
 public:
  ImageSet(ImageDataset images, torch::Dtype dtype, Augment augment = Augment::No)
      : images_(std::move(images)), dtype_(dtype), augment_(augment) {}

  std::int64_t size() const override { return images_.size(); }
  task::Values batch(std::span<const std::int64_t> samples) const override;

  const ImageDataset& images() const noexcept { return images_; }

 private:
  ImageDataset images_;
  torch::Dtype dtype_;
  Augment augment_;
};

}  // namespace bimetal::data
