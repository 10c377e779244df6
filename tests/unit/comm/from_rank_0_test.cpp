#include "bimetal/comm/from_rank_0.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "bimetal/base/error.h"
#include "support/thread_ranks.h"

namespace bimetal::comm {
namespace {

Deadline in_half_a_minute() {
  return Deadline::after(std::chrono::seconds(30));
}

TEST(FromRank0, EveryRankHasWhatRank0Says) {
  testing::run_ranks(3, [](int rank, Group group) {
    for (const std::string text : {"", "f", "some words"}) {
      const auto told = from_rank_0(
          group,
          [&] {
            EXPECT_EQ(rank, 0);
            return text;
          },
          in_half_a_minute());
      EXPECT_EQ(told, text);
    }
  });
}

/// Each rank's code and words where rank 0 fails so, and then ends the group at once.
template <typename Failure>
std::vector<std::string> said_of(const Failure& failure) {
  std::vector<std::string> said(3);
  testing::run_ranks(3, [&](int rank, Group group) {
    try {
      on_rank_0(group, [&] { throw failure; }, in_half_a_minute());
    } catch (const Error& error) {
      said[static_cast<std::size_t>(rank)] =
          std::string(to_string(error.code())) + ": " + error.what();
    } catch (const std::exception& error) {
      said[static_cast<std::size_t>(rank)] = error.what();
    }
    if (rank == 0) group.abort("rank 0 ends");
  });
  return said;
}

TEST(FromRank0, EveryRankHasTheErrorOfRank0) {
  for (int i = 0; i <= static_cast<int>(ErrorCode::Internal); ++i) {
    const Error error(static_cast<ErrorCode>(i), "there is none");
    const auto expected = std::string(to_string(error.code())) + ": there is none";
    EXPECT_EQ(said_of(error), std::vector<std::string>(3, expected));
  }
  EXPECT_EQ(said_of(std::runtime_error("of another library")),
            (std::vector<std::string>{"of another library", "internal: of another library",
                                      "internal: of another library"}));
}

}  // namespace
}  // namespace bimetal::comm
