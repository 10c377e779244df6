#include "bimetal/data/images/image_formats.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"

#ifdef BIMETAL_IMAGE_FILES
#include <jerror.h>
#include <jpeglib.h>
#include <png.h>

#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/files.h"
#endif

namespace bimetal::data {

#ifdef BIMETAL_IMAGE_FILES

namespace {

constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 28;
constexpr std::string_view kJpegStart = "\xff\xd8\xff";
constexpr std::string_view kPngStart = "\x89PNG\r\n\x1a\n";

/// Rows of red, green, blue.
struct Pixels {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> bytes;
  std::string wrong;  ///< empty: they are sound

  /// False, and notes it, for an impossible size.
  bool make_room(std::uint64_t rows, std::uint64_t columns) {
    if (rows == 0 || columns == 0 || rows > kMostPixels / columns) {
      wrong = fmt::format("it has {} x {} pixels", columns, rows);
      return false;
    }
    height = static_cast<std::int64_t>(rows);
    width = static_cast<std::int64_t>(columns);
    bytes.resize(rows * columns * 3);
    return true;
  }
};

/// Errors of libjpeg jump here: it cannot be thrown through.
struct JpegErrors {
  jpeg_error_mgr manager;  // first: libjpeg knows this part only
  std::jmp_buf back;
  std::array<char, JMSG_LENGTH_MAX> text;
};

[[noreturn]] void leave_jpeg(j_common_ptr decoder) {
  auto* errors = reinterpret_cast<JpegErrors*>(decoder->err);
  errors->manager.format_message(decoder, errors->text.data());
  std::longjmp(errors->back, 1);
}

/// Warnings of libjpeg that mean lost pixels are errors here.
void warn_jpeg(j_common_ptr decoder, int level) {
  const auto code = decoder->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE))
    leave_jpeg(decoder);
}

/// All that must be destroyed lives in `pixels` and with the caller: a jump passes no destructor.
void decode_jpeg(const std::string& file, jpeg_decompress_struct& decoder, JpegErrors& errors,
                 Pixels& pixels) {
  decoder.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = leave_jpeg;
  errors.manager.emit_message = warn_jpeg;
  if (setjmp(errors.back) != 0) {  // NOLINT: libjpeg knows no other way
    pixels.wrong = errors.text.data();
    return;
  }
  jpeg_create_decompress(&decoder);
  jpeg_mem_src(&decoder, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&decoder, TRUE);
  decoder.out_color_space = JCS_RGB;
  if (!pixels.make_room(decoder.image_height, decoder.image_width)) return;
  jpeg_start_decompress(&decoder);
  while (decoder.output_scanline < decoder.output_height) {
    JSAMPROW row = pixels.bytes.data() + std::size_t{decoder.output_scanline} * pixels.width * 3;
    jpeg_read_scanlines(&decoder, &row, 1);
  }
  jpeg_finish_decompress(&decoder);
}

Pixels read_jpeg(const std::string& file) {
  Pixels pixels;
  jpeg_decompress_struct decoder{};
  JpegErrors errors{};
  decode_jpeg(file, decoder, errors, pixels);
  jpeg_destroy_decompress(&decoder);
  return pixels;
}

Pixels read_png(const std::string& file) {
  Pixels pixels;
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const png_color black{0, 0, 0};
  bool sound = png_image_begin_read_from_memory(&image, file.data(), file.size()) != 0;
  if (sound && pixels.make_room(image.height, image.width)) {
    image.format = PNG_FORMAT_RGB;
    sound = png_image_finish_read(&image, &black, pixels.bytes.data(), 0, nullptr) != 0;
  }
  if (!sound || PNG_IMAGE_FAILED(image)) pixels.wrong = image.message;
  png_image_free(&image);
  return pixels;
}

Pixels decode(const std::string& file) {
  if (file.starts_with(kJpegStart)) return read_jpeg(file);
  if (file.starts_with(kPngStart)) return read_png(file);
  Pixels none;
  none.wrong = file.empty() ? "it is empty" : "it begins as neither JPEG nor PNG does";
  return none;
}

}  // namespace

torch::Tensor read_image(const std::filesystem::path& file) {
  auto pixels = decode(InputFile(file).read_all());
  if (!pixels.wrong.empty()) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("'{}' is no sound image: {}", file.string(), pixels.wrong));
  }
  return torch::from_blob(pixels.bytes.data(), {pixels.height, pixels.width, 3}, torch::kUInt8)
      .permute({2, 0, 1})
      .contiguous();
}

#else

torch::Tensor read_image(const std::filesystem::path& file) {
  throw Error(ErrorCode::Unsupported,
              fmt::format("{}: this build of Bimetal reads no JPEG and PNG files; install libjpeg "
                          "and libpng with their headers, and build it with them",
                          file.string()));
}

#endif

}  // namespace bimetal::data
