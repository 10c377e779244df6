// The outcome of a damaged or forged safetensors file: Error(CorruptData), never a crash, and no
// allocation beyond what the file's own size allows.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstring>
#include <optional>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/safetensors.h"
#include "support/forked_child.h"
#include "support/temporary_folder.h"

namespace bimetal::checkpoint {
namespace {

using ::testing::HasSubstr;

TensorMap example_tensors() {
  return {{"conv.weight", torch::arange(6.0).reshape({2, 3})},
          {"conv.bias", torch::tensor({1, 2, 3}, torch::kInt16)},
          {"mask", torch::tensor({true, false})}};
}

/// A file of this header and so many bytes of data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\0');
}

std::string one_tensor(const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
  return fmt::format(R"({{"x":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

/// Nothing if the contents were refused as CorruptData.
std::optional<TensorMap> read_contents(const std::filesystem::path& path,
                                       const std::string& contents,
                                       std::string* message = nullptr) {
  test::put_contents(path, contents);
  try {
    return read_safetensors(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::CorruptData) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
    if (message) *message = error.what();
  }
  return std::nullopt;
}

std::string flaw_of(const std::string& contents) {
  const test::TemporaryFolder folder;
  std::string message;
  EXPECT_FALSE(read_contents(folder / "file", contents, &message)) << contents;
  return message;
}

TEST(SafetensorsDamage, EveryTruncationIsNoticed) {
  const test::TemporaryFolder folder;
  write_safetensors(folder / "file", example_tensors());
  const std::string whole = test::contents_of(folder / "file");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(read_contents(folder / "cut", whole.substr(0, size))) << "cut to " << size;
  }
  EXPECT_FALSE(read_contents(folder / "longer", whole + '\0'));
}

TEST(SafetensorsDamage, TellsTheFlaw) {
  const auto tensor_flaw = [](const std::string& dtype, const std::string& shape,
                              const std::string& offsets, std::size_t data = 8) {
    return flaw_of(file_of(one_tensor(dtype, shape, offsets), data));
  };
  EXPECT_THAT(tensor_flaw("\"F33\"", "[2]", "[0,8]"), HasSubstr("'x': dtype 'F33' is unknown"));
  EXPECT_THAT(tensor_flaw("5", "[2]", "[0,8]"), HasSubstr("dtype is no string"));
  EXPECT_THAT(tensor_flaw("\"F32\"", "[3]", "[0,8]"), HasSubstr("do not fit its shape"));
  EXPECT_THAT(tensor_flaw("\"F32\"", "[2]", "[8,0]"), HasSubstr("do not fit its shape"));
  EXPECT_THAT(tensor_flaw("\"F32\"", "[-2]", "[0,8]"), HasSubstr("its dimensions hold"));
  EXPECT_THAT(tensor_flaw("\"F32\"", "[2.0]", "[0,8]"), HasSubstr("its dimensions hold"));
  EXPECT_THAT(tensor_flaw("\"F32\"", "2", "[0,8]"), HasSubstr("its shape is no shape"));
  EXPECT_THAT(tensor_flaw("\"F32\"", "[2]", "[0,8,9]"), HasSubstr("data_offsets are no pair"));
  EXPECT_THAT(tensor_flaw("\"F32\"", "[2]", "[0,8]", 7), HasSubstr("holds 7 bytes of data"));
  EXPECT_THAT(tensor_flaw("\"F32\"", "[2]", "[0,8]", 9), HasSubstr("its header tells of 8"));
  EXPECT_THAT(tensor_flaw("\"F32\"", "[2]", "[4,12]", 12), HasSubstr("begins at byte 4 where 0"));
  EXPECT_THAT(flaw_of(file_of("[]", 0)), HasSubstr("no JSON object"));
  EXPECT_THAT(flaw_of(file_of("{", 0)), HasSubstr("no JSON object"));
  EXPECT_THAT(flaw_of(file_of(R"({"x":{"dtype":"F32"}})", 0)), HasSubstr("not exactly dtype"));
  EXPECT_THAT(flaw_of(file_of(R"({"x":1})", 0)), HasSubstr("not exactly dtype"));
  EXPECT_THAT(flaw_of(file_of(one_tensor("\"BOOL\"", "[1]", "[0,1]"), 0) + '\2'),
              HasSubstr("no booleans"));
}

TEST(SafetensorsDamage, RefusesTensorsThatShareBytes) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})";
  EXPECT_THAT(flaw_of(file_of(header, 3)), HasSubstr("begins at byte 1 where 2"));
}

TEST(SafetensorsDamage, RefusesShapesThatOverflow) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[9223372036854775807,9223372036854775807,2]",
        "[0,9223372036854775807,9223372036854775807]", "[18446744073709551615]",
        "[99999999999999999999999]"}) {
    EXPECT_FALSE(flaw_of(file_of(one_tensor("\"F32\"", shape, "[0,0]"), 0)).empty()) << shape;
  }
}

// With the address space capped below what the file claims, believing it would end in bad_alloc.
TEST(SafetensorsDamage, BelievesNoLengthThatTheFileCannotHold) {
  const test::TemporaryFolder folder;
  const std::string huge_tensor =
      file_of(one_tensor("\"U8\"", "[1099511627776]", "[0,1099511627776]"), 16);
  std::string huge_header = file_of("{}", 8);
  huge_header[4] = 1;  // 4 GiB more
  std::string all_ones = file_of("{}", 8);
  std::memset(all_ones.data(), 0xff, 8);
  const std::string deep = file_of(std::string(200'000, '['), 0);
  for (const auto& contents : {huge_tensor, huge_header, all_ones, deep}) {
    test::put_contents(folder / "file", contents);
    test::ForkedChild child([&] {
      const rlimit limit{4ull << 30, 4ull << 30};
      setrlimit(RLIMIT_AS, &limit);
      try {
        read_safetensors(folder / "file");
      } catch (const Error& error) {
        return error.code() == ErrorCode::CorruptData ? 0 : 1;
      }
      return 2;
    });
    EXPECT_EQ(child.wait(), 0);
  }
}

}  // namespace
}  // namespace bimetal::checkpoint
