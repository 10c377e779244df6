#pragma once
// Writes images as JPEG and PNG files.

#include <gtest/gtest.h>
#include <jpeglib.h>
#include <png.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdlib>
#include <filesystem>

#include "unit/data/idx_files.h"

namespace bimetal::data::test {

/// `image`: uint8 [C, H, W] with 1 (grey), 3 or 4 (with transparency) channels.
inline void write_png(const std::filesystem::path& file, const torch::Tensor& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(image.size(1));
  png.width = static_cast<png_uint_32>(image.size(2));
  png.format = image.size(0) == 1   ? PNG_FORMAT_GRAY
               : image.size(0) == 3 ? PNG_FORMAT_RGB
                                    : PNG_FORMAT_RGBA;
  const auto rows = image.permute({1, 2, 0}).contiguous();
  ASSERT_NE(png_image_write_to_file(&png, file.c_str(), 0, rows.const_data_ptr(), 0, nullptr), 0)
      << png.message;
}

/// `image`: uint8 [C, H, W] with 1 (grey) or 3 channels.
inline void write_jpeg(const std::filesystem::path& file, const torch::Tensor& image) {
  jpeg_compress_struct encoder{};
  jpeg_error_mgr errors{};
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT: libjpeg's type
  jpeg_mem_dest(&encoder, &bytes, &size);
  encoder.image_height = static_cast<JDIMENSION>(image.size(1));
  encoder.image_width = static_cast<JDIMENSION>(image.size(2));
  encoder.input_components = static_cast<int>(image.size(0));
  encoder.in_color_space = image.size(0) == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, 95, TRUE);
  jpeg_start_compress(&encoder, TRUE);
  const auto rows = image.permute({1, 2, 0}).contiguous();
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    JSAMPROW row = const_cast<JSAMPROW>(rows[i].const_data_ptr<std::uint8_t>());
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  jpeg_destroy_compress(&encoder);
  write_file(file, Bytes(bytes, bytes + size));
  std::free(bytes);
}

/// One colour.
inline torch::Tensor plain_image(std::int64_t height, std::int64_t width, int red, int green,
                                 int blue) {
  return torch::tensor({red, green, blue})
      .to(torch::kUInt8)
      .view({3, 1, 1})
      .expand({3, height, width})
      .contiguous();
}

}  // namespace bimetal::data::test
