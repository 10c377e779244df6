#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cmath>

#include "bimetal/data/images/image_file.h"

namespace bimetal::data {

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
