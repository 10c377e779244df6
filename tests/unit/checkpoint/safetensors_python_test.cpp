// The format's reference implementation reads our files and writes some that we read. Needs the
// Python packages safetensors and numpy, as scripts/setup.sh installs them.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdlib>

#include "bimetal/checkpoint/safetensors.h"
#include "support/project_python.h"
#include "support/temporary_folder.h"

namespace bimetal::checkpoint {
namespace {

/// Runs `script` with the folder as its working directory; its exit status.
int run(const std::string& python, const test::TemporaryFolder& folder, const std::string& script) {
  test::put_contents(folder / "script.py", script);
  const auto command = fmt::format("cd {} && {} script.py", folder.path().string(), python);
  return std::system(command.c_str());
}

class SafetensorsPython : public ::testing::Test {
 protected:
  void SetUp() override {
    if (python_.empty()) GTEST_SKIP() << "the Python package safetensors is not installed";
  }
  const std::string python_ = test::python_with("numpy, safetensors");
  const test::TemporaryFolder folder_;
};

TEST_F(SafetensorsPython, ReadsOurFiles) {
  const auto base = torch::arange(-2, 4).reshape({2, 3});
  write_safetensors(folder_ / "ours", {{"F64", base.to(torch::kFloat64) / 3},
                                       {"F32", base.to(torch::kFloat32)},
                                       {"F16", base.to(torch::kFloat16)},
                                       {"I64", base},
                                       {"I8", base.to(torch::kInt8)},
                                       {"U8", base.to(torch::kUInt8)},
                                       {"BOOL", base > 0},
                                       {"scalar", torch::tensor(7, torch::kInt32)},
                                       {"empty", torch::empty({0, 2})}});
  EXPECT_EQ(run(python_, folder_, R"(
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file
base = np.arange(-2, 4).reshape(2, 3)
want = dict(F64=base / 3, F32=base.astype('f4'), F16=base.astype('f2'), I64=base,
            I8=base.astype('i1'), U8=base.astype('u1'), BOOL=base > 0,
            scalar=np.int32(7), empty=np.empty((0, 2), 'f4'))
got = load_file('ours')
assert got.keys() == want.keys(), got.keys()
for name, array in want.items():
    assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
    assert np.array_equal(got[name], array), name
with safe_open('ours', framework='numpy') as file:
    assert file.metadata() == {'format': 'pt'}, file.metadata()
)"),
            0);
}

TEST_F(SafetensorsPython, WritesFilesThatWeRead) {
  ASSERT_EQ(run(python_, folder_, R"(
import numpy as np
from safetensors.numpy import save_file
base = np.arange(-2, 4).reshape(2, 3)
save_file(dict(F64=base / 3, F16=base.astype('f2'), I16=base.astype('i2'), BOOL=base > 0,
               scalar=np.array(7, 'i4')), 'theirs', metadata={'made': 'elsewhere'})
)"),
            0);
  const auto base = torch::arange(-2, 4).reshape({2, 3});
  const TensorMap want = {{"F64", base.to(torch::kFloat64) / 3},
                          {"F16", base.to(torch::kFloat16)},
                          {"I16", base.to(torch::kInt16)},
                          {"BOOL", base > 0},
                          {"scalar", torch::tensor(7, torch::kInt32)}};
  const auto got = read_safetensors(folder_ / "theirs");
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    EXPECT_EQ(got.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(got.at(name), tensor)) << name;
  }
}

}  // namespace
}  // namespace bimetal::checkpoint
