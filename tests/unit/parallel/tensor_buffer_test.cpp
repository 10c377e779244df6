#include "bimetal/parallel/tensor_buffer.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::parallel {
namespace {

ErrorCode code_of_buffer(const torch::Tensor& tensor) {
  return code_of([&] { tensor_buffer(tensor); });
}

TEST(TensorBuffer, IsTheTensorsOwnMemory) {
  const auto tensor = torch::zeros({3, 4}, torch::kBFloat16);
  const auto buffer = tensor_buffer(tensor);
  EXPECT_EQ(buffer.data, tensor.data_ptr());
  EXPECT_EQ(buffer.count, 12u);
  EXPECT_EQ(buffer.dtype, comm::DType::bfloat16);
}

TEST(TensorBuffer, EveryTypeKeepsItsSize) {
  for (const auto dtype :
       {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16, torch::kInt8,
        torch::kInt16, torch::kInt32, torch::kInt64, torch::kUInt8}) {
    const auto tensor = torch::zeros({5}, dtype);
    EXPECT_EQ(tensor_buffer(tensor).bytes(), tensor.nbytes()) << c10::toString(dtype);
  }
}

TEST(TensorBuffer, RefusesWhatIsNotOneRunOfKnownElements) {
  EXPECT_EQ(code_of_buffer(torch::zeros({3, 4}).t()), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of_buffer(torch::zeros({3}, torch::kComplexFloat)), ErrorCode::Unsupported);
  EXPECT_EQ(code_of_buffer(torch::zeros({3}, torch::kBool)), ErrorCode::Unsupported);
}

}  // namespace
}  // namespace bimetal::parallel
