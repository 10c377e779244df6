#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/data/images/image_formats.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

struct LabelledFile {
  fs::path path;
  std::int64_t label = 0;
};

bool has_image_name(const fs::path& file) {
  constexpr std::array<std::string_view, 3> endings = {".jpg", ".jpeg", ".png"};
  auto ending = file.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::find(endings, ending) != endings.end();
}

/// By name, so that every machine has them in one order.
std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    if (!entry->path().filename().string().starts_with('.')) entries.push_back(entry->path());
  }
  if (failure) {
    throw Error(ErrorCode::System,
                fmt::format("cannot list the folder '{}': {}", folder.string(), failure.message()));
  }
  std::ranges::sort(entries, {}, [](const fs::path& path) { return path.filename().string(); });
  return entries;
}

std::vector<std::string> folders_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : sorted_entries(folder)) {
    if (fs::is_directory(entry)) names.push_back(entry.filename().string());
  }
  return names;
}

std::int64_t label_of(const fs::path& folder, const std::string& name,
                      const std::vector<std::string>& classes) {
  const auto found = std::ranges::find(classes, name);
  if (found != classes.end()) return found - classes.begin();
  const std::vector<std::string_view> known(classes.begin(), classes.end());
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("'{}' holds images of a class that is not trained on: the nearest folder "
                          "of train/ is '{}'",
                          (folder / name).string(), nearest_name(name, known)));
}

std::vector<LabelledFile> files_in(const fs::path& folder,
                                   const std::vector<std::string>& classes) {
  std::vector<LabelledFile> files;
  for (const auto& name : folders_in(folder)) {
    const auto label = label_of(folder, name, classes);
    for (auto& file : sorted_entries(folder / name)) {
      if (has_image_name(file)) files.push_back({std::move(file), label});
    }
  }
  if (files.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("'{}' has no files *.jpg, *.jpeg or *.png in folders of its classes",
                            folder.string()));
  }
  return files;
}

void require_room(std::size_t files, std::int64_t size) {
  const auto bytes = static_cast<double>(files) * 3.0 * static_cast<double>(size * size);
  if (bytes <= static_cast<double>(kMostImageBytes)) return;
  constexpr double gibi = 1 << 30;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("{} images of {}x{} pixels take {:.1f} GiB of memory, more than the {:.0f} GiB "
                  "that are allowed: take a smaller data.image_size, or fewer images",
                  files, size, size, bytes / gibi, static_cast<double>(kMostImageBytes) / gibi));
}

/// The fault in each file; empty for sound files, whose pixels are then in `images`.
std::vector<std::string> decode_all(const std::vector<LabelledFile>& files, torch::Tensor& images) {
  std::vector<std::string> wrong(files.size());
  const auto count = static_cast<std::int64_t>(files.size());
  at::parallel_for(0, count, /*grain_size=*/1, [&](std::int64_t begin, std::int64_t end) {
    const torch::NoGradGuard no_grad;
    for (auto i = begin; i < end; ++i) {
      const auto place = static_cast<std::size_t>(i);
      try {
        images[i].copy_(middle_square(read_image(files[place].path), images.size(3)));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::CorruptData) throw;
        wrong[place] = error.what();
      }
    }
  });
  return wrong;
}

/// Adds the faults of files that are left out to `left_out`.
ImageDataset read_files(const std::vector<LabelledFile>& files, const LoadOptions& options,
                        std::vector<std::string>& left_out) {
  require_room(files.size(), options.image_size);
  const auto count = static_cast<std::int64_t>(files.size());
  auto images = torch::empty({count, 3, options.image_size, options.image_size}, torch::kUInt8);
  const auto wrong = decode_all(files, images);
  std::vector<std::int64_t> sound, labels;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (wrong[i].empty()) {
      sound.push_back(static_cast<std::int64_t>(i));
      labels.push_back(files[i].label);
    } else {
      left_out.push_back(wrong[i]);
    }
  }
  const auto broken = files.size() - sound.size();
  if (broken > 0 && (!options.skip_broken || sound.empty())) {
    throw Error(
        ErrorCode::CorruptData,
        fmt::format("{} (and so {} of the {} images there); mend or remove what is broken{}",
                    left_out[left_out.size() - broken], broken, files.size(),
                    options.skip_broken ? "" : ", or set data.skip_broken = true"));
  }
  if (broken > 0) images = images.index_select(0, torch::tensor(sound));
  return {.images = images, .labels = torch::tensor(labels, torch::kInt64)};
}

}  // namespace

TrainTest read_image_folders(const fs::path& folder, const LoadOptions& options) {
  const auto classes = folders_in(folder / "train");
  TrainTest sets;
  sets.train = read_files(files_in(folder / "train", classes), options, sets.left_out);
  sets.test = read_files(files_in(folder / "test", classes), options, sets.left_out);
  sets.train.classes = sets.test.classes = static_cast<std::int64_t>(classes.size());
  return sets;
}

torch::Tensor middle_square(const torch::Tensor& image, std::int64_t size) {
  const auto height = image.size(1), width = image.size(2), least = std::min(height, width);
  const auto to = [&](std::int64_t side) { return std::max(size, size * side / least); };
  const auto resized = at::_upsample_bilinear2d_aa(image.unsqueeze(0), {to(height), to(width)},
                                                   /*align_corners=*/false)[0];
  const auto middle = [&](std::int64_t side) {
    return static_cast<std::int64_t>(std::lround(static_cast<double>(side - size) / 2));
  };
  return resized.narrow(1, middle(resized.size(1)), size)
      .narrow(2, middle(resized.size(2)), size)
      .contiguous();
}

}  // namespace bimetal::data
