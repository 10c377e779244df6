#include "bimetal/parallel/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/parallel/schedule/simulate.h"
#include "support/errors.h"

namespace bimetal::parallel::schedule {
namespace {

using ::testing::HasSubstr;

constexpr Kind kKinds[] = {Kind::gpipe, Kind::one_f_one_b, Kind::interleaved, Kind::zero_bubble};

std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const auto& action : actions) text += (text.empty() ? "" : " ") + to_string(action);
  return text;
}

std::string refusal(Kind kind, const Shape& shape) {
  return text_of(ErrorCode::InvalidArgument, [&] { require_possible(kind, shape); });
}

/// Every (kind, stages, micro-batches, chunks) that is small and possible.
template <typename Check>
void for_each_shape(const Check& check) {
  for (const Kind kind : kKinds) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int micro_batches = 1; micro_batches <= 13; ++micro_batches) {
        for (int chunks = 1; chunks <= 3; ++chunks) {
          const Shape shape{stages, micro_batches, chunks};
          if (!refusal(kind, shape).empty()) continue;
          SCOPED_TRACE(std::string(to_string(kind)) + " " + std::to_string(stages) + " stages, " +
                       std::to_string(micro_batches) + " micro-batches, " + std::to_string(chunks) +
                       " chunks");
          check(kind, shape);
        }
      }
    }
  }
}

TEST(Schedule, IsWhatThePapersDraw) {
  EXPECT_EQ(text_of(schedule(Kind::gpipe, 1, {2, 3})), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(text_of(schedule(Kind::one_f_one_b, 0, {3, 5})), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
  EXPECT_EQ(text_of(schedule(Kind::one_f_one_b, 2, {3, 3})), "F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(text_of(schedule(Kind::zero_bubble, 0, {2, 3})), "F0 F1 I0 W0 F2 I1 W1 I2 W2");
  EXPECT_EQ(text_of(schedule(Kind::zero_bubble, 1, {2, 3})), "F0 I0 F1 I1 W0 F2 I2 W1 W2");
  EXPECT_EQ(text_of(schedule(Kind::interleaved, 1, {2, 2, 2})), "F0 F1 F0.1 B0.1 F1.1 B1.1 B0 B1");
}

TEST(Schedule, HasEachPassOnceAndForwardFirst) {
  for_each_shape([](Kind kind, const Shape& shape) {
    for (const auto& actions : schedules(kind, shape)) {
      std::map<std::pair<int, int>, std::string> passes;
      for (const auto& [what, micro_batch, chunk] : actions) {
        passes[{micro_batch, chunk}] += "FBIW"[static_cast<int>(what)];
      }
      EXPECT_EQ(passes.size(), static_cast<std::size_t>(shape.micro_batches * shape.chunks));
      for (const auto& [place, order] : passes) {
        EXPECT_EQ(order, kind == Kind::zero_bubble ? "FIW" : "FB");
        EXPECT_LT(place.first, shape.micro_batches);
        EXPECT_LT(place.second, shape.chunks);
      }
    }
  });
}

TEST(Schedule, SaysWhatWouldWork) {
  EXPECT_THAT(refusal(Kind::interleaved, {4, 6, 2}), HasSubstr("4 or 8 would"));
  EXPECT_THAT(refusal(Kind::interleaved, {4, 3, 2}), HasSubstr("do not; 4 would"));
  EXPECT_THAT(refusal(Kind::one_f_one_b, {4, 6, 2}), HasSubstr("take \"interleaved\""));
  EXPECT_THAT(refusal(Kind::gpipe, {0, 6, 1}), HasSubstr("at least 1"));
  EXPECT_EQ(refusal(Kind::gpipe, {2, kMostMicroBatches, 1}), "");
  EXPECT_THAT(refusal(Kind::gpipe, {2, kMostMicroBatches + 1, 1}), HasSubstr("65536 at most"));
  EXPECT_THROW(schedule(Kind::gpipe, 2, {2, 1}), Error);
  EXPECT_EQ(micro_batches_near(Kind::interleaved, 4, 6), 8);
  EXPECT_EQ(micro_batches_near(Kind::one_f_one_b, 4, 6), 6);
}

TEST(Schedule, HasNamesThatJobFilesUse) {
  for (const Kind kind : kKinds) EXPECT_EQ(kind_named(to_string(kind)), kind);
  expect_error(ErrorCode::InvalidArgument, {"\"zero_bubble\""}, [&] { kind_named("dualpipe"); });
}

TEST(Schedule, MicroBatchesShareTheSamples) {
  EXPECT_EQ(micro_batches_filled(Kind::one_f_one_b, 2, 4, 9), 4);
  EXPECT_EQ(micro_batches_filled(Kind::one_f_one_b, 2, 4, 3), 3);
  EXPECT_EQ(micro_batches_filled(Kind::interleaved, 2, 4, 3), 2);
  EXPECT_EQ(micro_batches_filled(Kind::interleaved, 2, 4, 1), 2);
  EXPECT_EQ(micro_batch_sizes(7, 3), (std::vector<std::int64_t>{2, 2, 3}));
  EXPECT_EQ(micro_batch_sizes(2, 4), (std::vector<std::int64_t>{0, 1, 0, 1}));
}

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

TEST(InFlight, OfOneChunkIsTheMost) {
  EXPECT_THAT(fullest_moments(schedule(Kind::one_f_one_b, 0, {3, 5}), 1),
              ElementsAre(ElementsAre(3)));
  EXPECT_THAT(fullest_moments(schedule(Kind::zero_bubble, 1, {2, 3}), 1),
              ElementsAre(ElementsAre(2)));
  EXPECT_THAT(fullest_moments({}, 2), ElementsAre(ElementsAre(0, 0)));
  const std::vector<Action> fuller_later = {
      {What::forward, 0, 0}, {What::backward, 0, 0}, {What::forward, 1, 0}, {What::forward, 2, 0}};
  EXPECT_THAT(fullest_moments(fuller_later, 1), ElementsAre(ElementsAre(2)));
}

// F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 …
TEST(InFlight, OfSeveralChunksDifferentMomentsMayBeFullest) {
  EXPECT_THAT(fullest_moments(schedule(Kind::interleaved, 0, {2, 6, 2}), 2),
              UnorderedElementsAre(ElementsAre(3, 2), ElementsAre(4, 1)));
  EXPECT_THAT(fullest_moments(schedule(Kind::interleaved, 1, {2, 6, 2}), 2),
              UnorderedElementsAre(ElementsAre(2, 1), ElementsAre(3, 0)));
}

// For chunks of any size, one of the moments has all that a run ever keeps.
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
