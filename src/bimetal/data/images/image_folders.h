#pragma once
// Images in folders, one for each class.

#include <cstdint>
#include <filesystem>

#include "bimetal/data/images/dataset.h"

namespace bimetal::data {

/// Most bytes of decoded images that are held in memory.
inline constexpr std::int64_t kMostImageBytes = std::int64_t{32} << 30;

/// `folder`/train/<class>/… and `folder`/test/<class>/…: all files called *.jpg, *.jpeg or *.png,
/// whatever their case, in the order of their names, each decoded once and made square
/// (image_file.h); others are left alone. Classes are the folders of train/ in the order of their
/// names. Not yet with their mean and deviation. Errors: CorruptData for a file that is no sound
/// image, named with how many there are more, unless options.skip_broken; InvalidArgument for a
/// folder without images, a class that train/ lacks, and for more than kMostImageBytes.
TrainTest read_image_folders(const std::filesystem::path& folder, const LoadOptions& options);

}  // namespace bimetal::data
