#include "bimetal/parallel/schedule/in_flight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "bimetal/parallel/schedule/simulate.h"

namespace bimetal::parallel::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

TEST(InFlight, OfOneChunkIsTheMost) {
  EXPECT_THAT(fullest_moments(schedule(Kind::one_f_one_b, 0, {3, 5}), 1),
              ElementsAre(ElementsAre(3)));
  EXPECT_THAT(fullest_moments(schedule(Kind::zero_bubble, 1, {2, 3}), 1),
              ElementsAre(ElementsAre(2)));
  EXPECT_THAT(fullest_moments({}, 2), ElementsAre(ElementsAre(0, 0)));
}

// F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 …
TEST(InFlight, OfSeveralChunksDifferentMomentsMayBeFullest) {
  EXPECT_THAT(fullest_moments(schedule(Kind::interleaved, 0, {2, 6, 2}), 2),
              UnorderedElementsAre(ElementsAre(3, 2), ElementsAre(4, 1)));
  EXPECT_THAT(fullest_moments(schedule(Kind::interleaved, 1, {2, 6, 2}), 2),
              UnorderedElementsAre(ElementsAre(2, 1), ElementsAre(3, 0)));
}

// Whatever the chunks' sizes are, one of the moments has all that a run ever keeps.
TEST(InFlight, IsWhatRunsKeep) {
  for (const Shape& shape : {Shape{2, 8, 2}, Shape{3, 9, 3}, Shape{4, 4, 2}, Shape{4, 16, 4}}) {
    std::vector<PieceCost> pieces(static_cast<std::size_t>(shape.stages * shape.chunks));
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      pieces[p].activations = static_cast<double>(1 + p * p % 7);
    }
    const auto lists = schedules(Kind::interleaved, shape);
    const auto found = simulate(lists, pieces);
    for (int stage = 0; stage < shape.stages; ++stage) {
      double most = 0;
      for (const auto& moment :
           fullest_moments(lists[static_cast<std::size_t>(stage)], shape.chunks)) {
        double kept = 0;
        for (int chunk = 0; chunk < shape.chunks; ++chunk) {
          const auto piece = static_cast<std::size_t>(piece_of(stage, chunk, shape.stages));
          kept += moment[static_cast<std::size_t>(chunk)] * pieces[piece].activations;
        }
        most = std::max(most, kept);
      }
      EXPECT_DOUBLE_EQ(most, found.peak[static_cast<std::size_t>(stage)]);
    }
  }
}

TEST(Pieces, GoFromStageToStage) {
  const std::vector<std::size_t> begins = {0, 2, 3, 7};
  EXPECT_EQ(pieces_of(begins, 9, 2, 0), (std::vector<UnitRange>{{0, 2}, {3, 7}}));
  EXPECT_EQ(pieces_of(begins, 9, 2, 1), (std::vector<UnitRange>{{2, 3}, {7, 9}}));
  EXPECT_EQ(pieces_of(begins, 9, 4, 3), (std::vector<UnitRange>{{7, 9}}));
}

}  // namespace
}  // namespace bimetal::parallel::schedule
