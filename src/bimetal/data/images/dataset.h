#pragma once
// A labelled image set held in memory, and how to find one by name.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/data/dataset_files.h"
#include "bimetal/task/task.h"

namespace bimetal::task {
struct Draws;
}  // namespace bimetal::task

namespace bimetal::data {

/// images: uint8 [N, C, H, W]; labels: int64 [N]. Immutable after construction; share freely.
struct ImageDataset {
  torch::Tensor images;       ///< uint8 [N, C, H, W]
  torch::Tensor labels;       ///< int64 [N]
  std::int64_t classes = 10;  ///< labels are 0 … classes − 1
  /// The mean and deviation of pixel ÷ 255 over the training set, one number for each channel or
  /// one for all. Batches are (x/255 − mean) ÷ stddev.
  std::vector<double> mean = {0.0}, stddev = {1.0};  ///< of each channel, or of all

  std::int64_t size() const { return labels.size(0); }  ///< images
};

/// Some images, ready for a model.
struct Batch {
  torch::Tensor x;  ///< [b, C, H, W] of the job's dtype, normalised
  torch::Tensor y;  ///< [b] int64
};

/// Gathers, converts and normalises samples; indices: int64 [b] (b may be 0). All tensors are on
/// the CPU. Error(InvalidArgument) for an index outside the dataset or a type that is no floating
/// point.
Batch make_batch(const ImageDataset& dataset, const torch::Tensor& indices, torch::Dtype dtype);

/// Images as batches have them, of pixels uint8 [N, C, H, W]: (x/255 − mean) ÷ stddev.
torch::Tensor normalised(const torch::Tensor& pixels, const std::vector<double>& mean,
                         const std::vector<double>& stddev, torch::Dtype dtype);

/// Errors of make_batch for indices.
void check_indices(const ImageDataset& dataset, const torch::Tensor& indices);

/// A data set in its two parts.
struct TrainTest {
  ImageDataset train;                      ///< to learn from
  ImageDataset test;                       ///< to judge by
  std::vector<std::string> left_out = {};  ///< files that were skipped, and their faults
};

/// How a data set is read.
struct LoadOptions {
  std::int64_t image_size = 224;  ///< of folders of images (image_formats.h), as the next
  bool skip_broken = false;       ///< files that cannot be read are left out, and listed
  std::vector<double> mean = {}, stddev = {};  ///< as ImageDataset's; empty: measured
};

/// Reads what find_dataset() has found. Both sets are normalised by the training set's mean and
/// deviation of each channel, unless others are given. Errors: CorruptData for damaged or
/// mismatched files; InvalidArgument where there are neither one nor as many of these as channels;
/// those of read_image_folders.
TrainTest load_dataset(const DatasetFiles& dataset, const LoadOptions& options = {});

/// The same in one call. Names known: "fashion-mnist", "mnist", "cifar-10", "images". Errors: those
/// of find_dataset, too.
TrainTest load_dataset(const std::string& name, const std::filesystem::path& path);

// Labelled images as samples of a task.

/// Whether images are cropped and flipped at random.
enum class Augment { No, Yes };

/// A batch is {x, y} of make_batch(): [b, C, H, W] of `dtype`, normalised, and the labels, int64
/// [b]. With Augment::Yes the images are cropped and flipped (draw_crop) where a task::DrawScope
/// says for which seed and epoch.
class ImageSet final : public task::Dataset {
 public:
  /// Batches of type `dtype`.
  ImageSet(ImageDataset images, torch::Dtype dtype, Augment augment = Augment::No)
      : images_(std::move(images)), dtype_(dtype), augment_(augment) {}

  std::int64_t size() const override { return images_.size(); }
  task::Values batch(std::span<const std::int64_t> samples) const override;

  const ImageDataset& images() const noexcept { return images_; }  ///< as they were given

 private:
  ImageDataset images_;
  torch::Dtype dtype_;
  Augment augment_;
};

// Random crops and flips of images, as is usual on CIFAR (He et al. 2016, section 4.2).

/// Pixels.
inline constexpr std::int64_t kCropPadding = 4;

/// The change made to an image.
struct Crop {
  std::int64_t down = 0, right = 0;  ///< by so many pixels it moves, −kCropPadding … kCropPadding
  bool flipped = false;              ///< left and right are then exchanged
  bool operator==(const Crop&) const = default;
};

/// Depends on (seed, epoch, sample) alone: which rank computes a sample, and beside which others,
/// makes no difference. Only the seed and the epoch of `draws` count.
Crop draw_crop(const task::Draws& draws, std::int64_t sample);

/// The images `samples` of `images` (uint8 [N, C, H, W]) in that order, each cropped to its own
/// size out of itself padded with kCropPadding black pixels on every side, and flipped in half of
/// the cases. All are from 0 to N − 1.
torch::Tensor augmented(const torch::Tensor& images, std::span<const std::int64_t> samples,
                        const task::Draws& draws);

}  // namespace bimetal::data
