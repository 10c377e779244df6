#pragma once
// An accelerator without hardware, for what only an accelerator shows: that the host seldom waits
// for it, and never reads what has not come yet. Its kernels are the CPU's and run at once; copies
// to page-locked memory of the host, and from it by other streams than that of the kernels, are
// made as late as the device's interface allows.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace bimetal::testing {

class SimulatedDevice {
 public:
  /// libtorch has it from then on, in this process.
  static torch::Device install();

  /// The host's waits since the last call, in order and by any thread, as people read them:
  /// "aten::_local_scalar_dense", "a copy to the host", "the device". Looking at an event is no
  /// wait.
  static std::vector<std::string> take_waits();

  /// Kernels that were launched since the last call.
  static std::int64_t take_launches();

  /// Copies to the host that have been asked for and not been made.
  static std::int64_t copies_under_way();
};

}  // namespace bimetal::testing
