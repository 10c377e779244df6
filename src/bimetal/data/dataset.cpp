#include "bimetal/data/dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/nearest_name.h"
#include "bimetal/data/idx.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

struct Source {
  std::string_view name;
  std::string_view how_to_get;
};

constexpr std::array<Source, 2> kSources = {{
    {"fashion-mnist",
     "install Debian's package dataset-fashion-mnist, or take the four files from "
     "https://github.com/zalandoresearch/fashion-mnist"},
    {"mnist",
     "take the four files from https://ossci-datasets.s3.amazonaws.com/mnist/ "
     "(train-images-idx3-ubyte.gz and so on)"},
}};

constexpr std::string_view kTrainImages = "train-images-idx3-ubyte";
constexpr std::string_view kTrainLabels = "train-labels-idx1-ubyte";
constexpr std::string_view kTestImages = "t10k-images-idx3-ubyte";
constexpr std::string_view kTestLabels = "t10k-labels-idx1-ubyte";

const Source& source_of(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Source& source : kSources) {
    if (source.name == name) return source;
    names.push_back(source.name);
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("no dataset is called '{}'; did you mean '{}'? Known: {}", name,
                          nearest_name(name, names), fmt::join(names, ", ")));
}

std::vector<fs::path> usual_places(const std::string& name) {
  std::vector<fs::path> places;
  if (const char* root = std::getenv("BIMETAL_DATA")) places.push_back(fs::path(root) / name);
  if (const char* home = std::getenv("HOME")) {
    places.push_back(fs::path(home) / ".cache" / "bimetal" / name);
  }
  places.push_back(fs::path("/usr/share/datasets") / name);
  return places;
}

fs::path find_folder(const Source& source, const fs::path& path) {
  const std::vector<fs::path> places =
      path.empty() ? usual_places(std::string(source.name)) : std::vector<fs::path>{path};
  std::vector<std::string> searched;
  for (const fs::path& place : places) {
    std::error_code ignored;  // what cannot be looked at counts as not there
    if (fs::is_directory(place, ignored)) return place;
    searched.push_back(place.string());
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("dataset '{}' is in none of these folders: {}; {} and name their folder "
                          "as [data] path",
                          source.name, fmt::join(searched, ", "), source.how_to_get));
}

fs::path find_file(const Source& source, const fs::path& folder, std::string_view name) {
  for (const char* suffix : {"", ".gz"}) {
    const fs::path file = folder / (std::string(name) + suffix);
    std::error_code ignored;
    if (fs::exists(file, ignored)) return file;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("dataset '{}': folder '{}' has no {} (nor {}.gz); {}", source.name,
                          folder.string(), name, name, source.how_to_get));
}

[[noreturn]] void throw_mismatch(const std::string& what) {
  throw Error(ErrorCode::CorruptData, what + "; fetch the files again");
}

ImageDataset read_set(const fs::path& image_file, const fs::path& label_file) {
  ImageDataset set;
  const torch::Tensor images = read_idx(image_file);
  const torch::Tensor labels = read_idx(label_file);
  if (images.dim() != 3 || images.numel() == 0) {
    throw_mismatch(fmt::format("'{}' holds no images: its dimensions are {}, not N x H x W",
                               image_file.string(), fmt::join(images.sizes(), "x")));
  }
  if (labels.dim() != 1) {
    throw_mismatch(fmt::format("'{}' holds no labels: its dimensions are {}, not N",
                               label_file.string(), fmt::join(labels.sizes(), "x")));
  }
  if (images.size(0) != labels.size(0)) {
    throw_mismatch(fmt::format("'{}' holds {} images but '{}' {} labels", image_file.string(),
                               images.size(0), label_file.string(), labels.size(0)));
  }
  const auto largest = labels.max().item<std::int64_t>();
  if (largest >= set.classes) {
    throw_mismatch(fmt::format("'{}' holds a label {}, but there are {} classes",
                               label_file.string(), largest, set.classes));
  }
  set.images = images.unsqueeze(1);
  set.labels = labels.to(torch::kInt64);
  return set;
}

/// Mean and deviation of pixel ÷ 255, exact to rounding: from the counts of the 256 values.
void set_normalisation(ImageDataset& set) {
  const auto counts = torch::bincount(set.images.flatten(), {}, 256).to(torch::kFloat64);
  const auto values = torch::arange(256, torch::kFloat64) / 255.0;
  const double pixels = counts.sum().item<double>();
  set.mean = (counts * values).sum().item<double>() / pixels;
  const double variance = (counts * (values - set.mean).square()).sum().item<double>() / pixels;
  set.stddev = variance > 0.0 ? std::sqrt(variance) : 1.0;
}

/// Copies with each pixel replaced by its normalised value: gather, conversion and arithmetic in
/// one pass, on the calling thread alone (a prefetch thread must not wake a second OpenMP team).
template <typename Element>
void gather(const ImageDataset& set, const torch::Tensor& indices, const torch::Tensor& values,
            torch::Tensor& x) {
  const std::int64_t pixels = c10::multiply_integers(set.images.sizes().slice(1));
  const auto* from = set.images.const_data_ptr<std::uint8_t>();
  const auto* value_of = static_cast<const Element*>(values.const_data_ptr());
  auto* to = static_cast<Element*>(x.mutable_data_ptr());
  const auto* index = indices.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < indices.size(0); ++i) {
    const std::uint8_t* image = from + index[i] * pixels;
    for (std::int64_t p = 0; p < pixels; ++p) *to++ = value_of[image[p]];
  }
}

void check_request(const ImageDataset& dataset, const torch::Tensor& indices, torch::Dtype dtype) {
  if (indices.dim() != 1 || indices.scalar_type() != torch::kInt64) {
    throw Error(ErrorCode::InvalidArgument, "a batch is chosen by int64 indices in one dimension");
  }
  if (!torch::isFloatingType(dtype) || torch::elementSize(dtype) < 2) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("images cannot be normalised as {}", torch::toString(dtype)));
  }
  if (indices.numel() == 0) return;
  const auto [least, greatest] = torch::aminmax(indices);
  if (least.item<std::int64_t>() < 0 || greatest.item<std::int64_t>() >= dataset.size()) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("indices {}…{} reach outside a dataset of {} samples",
                    least.item<std::int64_t>(), greatest.item<std::int64_t>(), dataset.size()));
  }
}

}  // namespace

Batch make_batch(const ImageDataset& dataset, const torch::Tensor& indices, torch::Dtype dtype) {
  check_request(dataset, indices, dtype);
  std::vector<std::int64_t> shape = dataset.images.sizes().vec();
  shape[0] = indices.size(0);
  Batch batch{torch::empty(shape, dtype), dataset.labels.index_select(0, indices)};
  const torch::Tensor values = torch::arange(256, torch::kFloat64)
                                   .div_(255.0)
                                   .sub_(dataset.mean)
                                   .div_(dataset.stddev)
                                   .to(dtype);
  const torch::Tensor contiguous = indices.contiguous();
  switch (torch::elementSize(dtype)) {
    case 2: gather<std::uint16_t>(dataset, contiguous, values, batch.x); break;
    case 4: gather<std::uint32_t>(dataset, contiguous, values, batch.x); break;
    default: gather<std::uint64_t>(dataset, contiguous, values, batch.x); break;
  }
  return batch;
}

TrainTest load_dataset(const std::string& name, const fs::path& path) {
  const Source& source = source_of(name);
  const fs::path folder = find_folder(source, path);
  const auto file = [&](std::string_view file_name) {
    return find_file(source, folder, file_name);
  };
  TrainTest sets{read_set(file(kTrainImages), file(kTrainLabels)),
                 read_set(file(kTestImages), file(kTestLabels))};
  if (sets.train.images.sizes().slice(1) != sets.test.images.sizes().slice(1)) {
    throw_mismatch(fmt::format("in '{}' the images for training are {} and those for testing {}",
                               folder.string(), fmt::join(sets.train.images.sizes().slice(1), "x"),
                               fmt::join(sets.test.images.sizes().slice(1), "x")));
  }
  set_normalisation(sets.train);
  sets.test.mean = sets.train.mean;
  sets.test.stddev = sets.train.stddev;
  return sets;
}

}  // namespace bimetal::data
