// A checkpoint that cannot be read: every rank says why, whoever has looked.

#include "bimetal/checkpoint/slices/shared_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <functional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/shared_checkpoint.h"
#include "support/temporary_folder.h"
#include "support/thread_ranks.h"
#include "unit/checkpoint/small_net.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using OnRank = std::function<void(int rank, comm::Group group)>;

/// What three ranks say, all of them in the same words.
std::string refusal_of_all(const OnRank& read) {
  std::vector<std::string> said(3);
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    try {
      read(rank, group);
    } catch (const Error& error) {
      said[static_cast<std::size_t>(rank)] =
          std::string(to_string(error.code())) + ": " + error.what();
    }
  });
  EXPECT_EQ(said, std::vector<std::string>(3, said[0]));
  return said[0];
}

OnRank reading(const fs::path& path) {
  return [path](int rank, comm::Group group) {
    const SharedReader saved(group, rank == 0 ? std::optional(path) : std::nullopt);
  };
}

TEST(SharedReader, WhereNoneIsFoundAllRanksSaySo) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(refusal_of_all(reading(folder / "missing")),
              HasSubstr("invalid_argument: there is no checkpoint in"));
  EXPECT_THAT(refusal_of_all(reading(folder.path())), HasSubstr("it is empty"));
}

TEST(SharedReader, WhereItIsDamagedOrOfAnotherModelAllRanksSaySo) {
  const test::TemporaryFolder folder;
  SmallNet net;
  torch::optim::SGD sgd(net.parameters(), 0.1);
  const auto path = save_checkpoint(folder.path(), net, sgd, {.step = 1}, 1);
  EXPECT_EQ(refusal_of_all(reading(path)), "");
  EXPECT_EQ(refusal_of_all([&](int rank, comm::Group group) {
              SharedReader saved(group, rank == 0 ? std::optional(path) : std::nullopt);
              saved.on_rank_0([](OpenCheckpoint&) {
                throw Error(ErrorCode::InvalidArgument, "it holds another model");
              });
            }),
            "invalid_argument: it holds another model");
  const auto model = test::contents_of(path / kModelFile);
  test::put_contents(path / kModelFile, model.substr(0, model.size() - 1));
  EXPECT_THAT(refusal_of_all(reading(path)), HasSubstr("corrupt_data: "));
  EXPECT_THAT(refusal_of_all([&](int, comm::Group group) {
                SmallNet mine;
                torch::optim::SGD its(mine.parameters(), 0.1);
                load_shared_checkpoint(group, path, mine, its);
              }),
              HasSubstr("corrupt_data: "));
}

TEST(SharedReader, NothingIsFoundWhereRank0IsGivenNothing) {
  testing::run_ranks(2, [](int, comm::Group group) {
    SharedReader saved(group, std::nullopt);
    EXPECT_FALSE(saved.found());
    saved.on_rank_0([](OpenCheckpoint&) { ADD_FAILURE(); });
  });
}

}  // namespace
}  // namespace bimetal::checkpoint
