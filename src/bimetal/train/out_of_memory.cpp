#include "bimetal/train/out_of_memory.h"

#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>

namespace bimetal::train {

std::exception_ptr without_memory_for(const torch::Device& device,
                                      const std::function<void()>& work) {
  std::exception_ptr error;
  try {
    work();
    return nullptr;
  } catch (...) {
    error = std::current_exception();
    if (!is_out_of_memory(error)) throw;
  }
  // Outside the handler: what the work had half built has been freed by now.
  if (!device.is_cpu()) at::accelerator::emptyCache();
  return error;
}

std::string remedy(const progress::RankFigures& rank, std::int64_t cap) {
  switch (rank.fit) {
    case progress::Fit::try_recomputing: return "it computes activations again for backward";
    case progress::Fit::try_smaller_pieces: return "it computes them in smaller micro-batches";
    case progress::Fit::too_large: return fmt::format("its share is capped at {}", cap);
    case progress::Fit::fits: break;
  }
  return {};
}

}  // namespace bimetal::train
