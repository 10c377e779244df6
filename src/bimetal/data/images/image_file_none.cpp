// In place of image_file.cpp where there is no libjpeg or libpng.

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"
#include "bimetal/data/images/image_formats.h"

namespace bimetal::data {

torch::Tensor read_image(const std::filesystem::path& file) {
  throw Error(ErrorCode::Unsupported,
              fmt::format("{}: this build of Bimetal reads no JPEG and PNG files; install libjpeg "
                          "and libpng with their headers, and build it with them",
                          file.string()));
}

}  // namespace bimetal::data
