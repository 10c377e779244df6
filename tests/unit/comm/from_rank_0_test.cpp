#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::comm {
namespace {

Deadline in_half_a_minute() {
  return Deadline::after(std::chrono::seconds(30));
}

/// Each rank's code and words where rank 0 fails so, and then ends the group at once.
template <typename Failure>
std::vector<std::string> said_of(const Failure& failure) {
  std::vector<std::string> said(3);
  testing::run_ranks(3, [&](int rank, Group group) {
    try {
      on_rank_0(
          group, [&] { throw failure; }, in_half_a_minute());
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

Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

template <typename Call>
void expect_refused(Call call) {
  EXPECT_EQ(expect_error(ErrorCode::CorruptData, {"rank 1 announces"}, [&] { call(); }).rank(), 1);
}

TEST(Exchange, SizesThatNoRankCanMeanAreRefused) {
  for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{1} << 62}) {
    bimetal::testing::run_ranks(2, [size](int rank, Group group) {
      std::vector<std::int64_t> said = {size}, all(2);
      if (rank == 1) {  // as a rank would that is out of order
        group.all_gather(buffer(std::span(std::as_const(said))), buffer(std::span(all)), soon())
            .wait();
        group.broadcast(buffer(std::span(said)), 1, soon()).wait();
        return;
      }
      expect_refused([&] { all_gather_bytes(group, bytes_of("mine"), soon()); });
      expect_refused([&] { broadcast_bytes(group, {}, 1, soon()); });
    });
  }
}

}  // namespace
}  // namespace bimetal::comm
