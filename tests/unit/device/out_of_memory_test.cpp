#include "bimetal/device/out_of_memory.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <new>
#include <stdexcept>

#include "bimetal/base/error.h"

namespace bimetal::device {
namespace {

template <typename Function>
bool is_out_of_memory_thrown_by(Function&& function) {
  try {
    function();
  } catch (...) {
    return is_out_of_memory(std::current_exception());
  }
  ADD_FAILURE() << "nothing was thrown";
  return false;
}

TEST(OutOfMemory, RecognisesTheCpuAllocatorsRefusal) {
  const std::int64_t petabytes = std::int64_t{1} << 50;
  EXPECT_TRUE(is_out_of_memory_thrown_by([&] { torch::empty({petabytes}); }));
}

TEST(OutOfMemory, RecognisesWhatOtherAllocatorsThrow) {
  EXPECT_TRUE(is_out_of_memory_thrown_by([] { throw std::bad_alloc(); }));
  EXPECT_TRUE(is_out_of_memory_thrown_by(
      [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory."); }));
  EXPECT_TRUE(is_out_of_memory_thrown_by(
      [] { TORCH_CHECK(false, "MPS backend out of memory (MPS allocated: 9 GB)"); }));
  EXPECT_TRUE(is_out_of_memory_thrown_by(
      [] { throw std::runtime_error("could not create a memory object"); }));
  EXPECT_TRUE(
      is_out_of_memory_thrown_by([] { throw Error(ErrorCode::OutOfMemory, "as it says"); }));
}

TEST(OutOfMemory, LeavesOtherErrorsAlone) {
  EXPECT_FALSE(is_out_of_memory_thrown_by([] { torch::zeros({2}) + torch::zeros({3}); }));
  EXPECT_FALSE(is_out_of_memory_thrown_by([] { throw Error(ErrorCode::System, "disk is full"); }));
  EXPECT_FALSE(is_out_of_memory_thrown_by([] { throw 1; }));
}

}  // namespace
}  // namespace bimetal::device
