#include "bimetal/comm/exchange.h"

#include <gtest/gtest.h>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::comm {
namespace {

Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(Exchange, GivesEverybodyWhatEachHasPutIn) {
  bimetal::testing::run_ranks(3, [](int rank, Group group) {
    const auto all =
        all_gather_text(group, std::string(static_cast<std::size_t>(rank), 'x'), soon());
    EXPECT_EQ(all, (std::vector<std::string>{"", "x", "xx"}));
    EXPECT_EQ(
        broadcast_bytes(group, rank == 1 ? bytes_of("one") : bytes_of("anything else"), 1, soon()),
        bytes_of("one"));
    EXPECT_EQ(broadcast_bytes(group, {}, 0, soon()), Bytes());
  });
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
