// The corpus once through every target, with whatever compiler builds the tests.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/targets.h"

namespace bimetal::fuzz {
namespace {

class Replay : public ::testing::TestWithParam<Target> {};

TEST_P(Replay, Corpus) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(BIMETAL_FUZZ_CORPUS) / GetParam().name)) {
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
    GetParam().run(std::as_bytes(std::span(bytes)));
    // Cut short and damaged, it must do no harm either.
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      GetParam().run(std::as_bytes(std::span(bytes).first(size)));
      auto damaged = bytes;
      damaged[size] = static_cast<char>(damaged[size] ^ (1 << size % 8));
      GetParam().run(std::as_bytes(std::span(damaged)));
    }
    ++files;
  }
  EXPECT_GT(files, 0);
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Replay, ::testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace bimetal::fuzz
