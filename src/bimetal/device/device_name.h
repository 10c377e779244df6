#pragma once
// The marketing name of an accelerator. libtorch's device-generic interface has no call for it.

#include <torch/csrc/api/include/torch/types.h>

#include <string>

namespace bimetal::device {

/// "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "Apple M3"; where the name can't be had, the
/// device's own notation, e.g. "xpu:0".
std::string accelerator_name(const torch::Device& device);

}  // namespace bimetal::device
