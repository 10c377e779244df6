#include "bimetal/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdlib>
#include <cstring>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "support/project_python.h"
#include "support/temporary_folder.h"

namespace bimetal::checkpoint {
namespace {

TensorMap all_types() {
  const auto base = torch::arange(-4, 8).reshape({3, 4});
  TensorMap tensors;
  for (const auto dtype :
       {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16, torch::kInt64,
        torch::kInt32, torch::kInt16, torch::kInt8, torch::kUInt8, torch::kBool}) {
    tensors[c10::toString(dtype)] = base.to(dtype);
  }
  return tensors;
}

void expect_equal(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_EQ(b.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(b.at(name), tensor)) << name;
  }
}

void expect_refused(const TensorMap& tensors, const std::string& words) {
  const test::TemporaryFolder folder;
  expect_error(ErrorCode::InvalidArgument, {words},
               [&] { write_safetensors(folder / "file", tensors); });
  EXPECT_TRUE(test::names_in(folder.path()).empty());
}

TEST(Safetensors, KeepsEveryTypeAndShape) {
  const test::TemporaryFolder folder;
  TensorMap tensors = all_types();
  tensors["scalar"] = torch::tensor(3.5);
  tensors["empty"] = torch::empty({2, 0, 3});
  tensors["not contiguous"] = torch::arange(12.0).reshape({3, 4}).t();
  tensors["a view"] = torch::arange(12.0).slice(0, 3, 9, 2);
  tensors["with gradient"] = torch::ones({2}).requires_grad_();
  tensors["strange \"name\" \\ \n €"] = torch::ones({1});
  tensors["special"] = torch::tensor({0.0, -0.0, 1e308, 5e-324}, torch::kFloat64);
  write_safetensors(folder / "file", tensors);
  expect_equal(tensors, read_safetensors(folder / "file"));
}

TEST(Safetensors, KeepsTheBitsOfNaN) {
  const test::TemporaryFolder folder;
  const auto bits = torch::tensor({0x7ff8dead0000beef, 0x7ff0000000000001}, torch::kInt64);
  write_safetensors(folder / "file", {{"x", bits.view(torch::kFloat64)}});
  EXPECT_TRUE(torch::equal(read_safetensors(folder / "file")["x"].view(torch::kInt64), bits));
}

TEST(Safetensors, AnEmptyMapIsAFile) {
  const test::TemporaryFolder folder;
  write_safetensors(folder / "file", {});
  EXPECT_TRUE(read_safetensors(folder / "file").empty());
}

// The layout that the format's description asks for, read without our own reader.
TEST(Safetensors, PadsTheHeaderAndAlignsTheTensors) {
  const test::TemporaryFolder folder;
  write_safetensors(folder / "file", all_types());
  const std::string file = test::contents_of(folder / "file");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const auto header = nlohmann::json::parse(file.substr(8, length));
  EXPECT_EQ(header["__metadata__"], (nlohmann::json{{"format", "pt"}}));
  std::size_t largest_end = 0;
  for (const auto& [name, tensor] : all_types()) {
    const std::size_t begin = header[name]["data_offsets"][0],
                      end = header[name]["data_offsets"][1];
    EXPECT_EQ(begin % tensor.element_size(), 0u) << name;
    EXPECT_EQ(std::memcmp(file.data() + 8 + length + begin, tensor.const_data_ptr(), end - begin),
              0);
    largest_end = std::max(largest_end, end);
  }
  EXPECT_EQ(8 + length + largest_end, file.size());
}

TEST(Safetensors, RefusesWhatTheFormatCannotHold) {
  expect_refused({{"x", torch::ones({2}, torch::kComplexFloat)}}, "'x' is of type ComplexFloat");
  expect_refused({{"x", torch::Tensor()}}, "'x' is undefined or sparse");
  expect_refused({{"x", torch::ones({2, 2}).to_sparse()}}, "'x' is undefined or sparse");
  expect_refused({{"__metadata__", torch::ones({2})}}, "__metadata__");
  expect_refused({{"\xff", torch::ones({2})}}, "no valid UTF-8");
}

TEST(Safetensors, NamesWhatCannotBeOpened) {
  const test::TemporaryFolder folder;
  for (const auto& path : {folder / "none", folder.path()}) {
    expect_error(ErrorCode::System, {"cannot read " + path.string()},
                 [&] { read_safetensors(path); });
  }
}

TEST(Safetensors, AreTheSameBytesInMemory) {
  const test::TemporaryFolder folder;
  write_safetensors(folder / "file", all_types());
  const auto bytes = encode_safetensors(all_types());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
            test::contents_of(folder / "file"));
  expect_equal(decode_safetensors(bytes, "memory"), all_types());
  EXPECT_TRUE(decode_safetensors(encode_safetensors({}), "memory").empty());
}

TEST(Safetensors, APartOfThemIsRefusedInMemory) {
  const auto bytes = encode_safetensors(all_types());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    expect_error(ErrorCode::CorruptData, {"what has come"},
                 [&] { decode_safetensors(std::span(bytes).first(size), "what has come"); });
  }
}

// The format's reference implementation reads our files and writes some that we read. Needs the
// Python packages safetensors and numpy, as scripts/setup.sh installs them.

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

}  // namespace
}  // namespace bimetal::checkpoint
