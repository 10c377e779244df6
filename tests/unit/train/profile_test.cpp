#include "bimetal/train/profile/operations.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/train/profile/rank_profile.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

using Kind = ProfiledEvent::Kind;

Operation named(const std::vector<Operation>& operations, const std::string& name) {
  for (const auto& operation : operations) {
    if (operation.name == name) return operation;
  }
  return {};
}

/// Two threads, microseconds; linear calls addmm, which allocates.
std::vector<ProfiledEvent> some_events() {
  return {{.kind = Kind::mark,
           .name = "bimetal::forward",
           .begin_ns = 0,
           .end_ns = 100'000,
           .thread = 1},
          {.name = "addmm", .begin_ns = 20'000, .end_ns = 50'000, .thread = 1},
          {.name = "linear", .begin_ns = 10'000, .end_ns = 60'000, .thread = 1},
          {.kind = Kind::memory, .begin_ns = 30'000, .end_ns = 30'000, .thread = 1, .bytes = 64},
          {.kind = Kind::memory, .begin_ns = 55'000, .end_ns = 55'000, .thread = 1, .bytes = -24},
          {.name = "linear", .begin_ns = 70'000, .end_ns = 90'000, .thread = 1},
          {.name = "linear", .begin_ns = 15'000, .end_ns = 25'000, .thread = 2},
          {.kind = Kind::kernel, .name = "gemm", .begin_ns = 5'000, .end_ns = 95'000, .thread = 7}};
}

TEST(Operations, HaveWhatTheyDoThemselves) {
  const auto operations = add_up(some_events());
  EXPECT_EQ(operations.size(), 3u) << "marks are none";
  const auto linear = named(operations, "linear");
  EXPECT_EQ(linear.calls, 3);
  EXPECT_NEAR(linear.total_s, 80e-6, 1e-12);
  EXPECT_NEAR(linear.self_s, 50e-6, 1e-12);
  EXPECT_EQ(linear.bytes, -24);
  const auto addmm = named(operations, "addmm");
  EXPECT_NEAR(addmm.self_s, 30e-6, 1e-12);
  EXPECT_EQ(addmm.bytes, 64);
  const auto gemm = named(operations, "gemm");
  EXPECT_NEAR(gemm.device_s, 90e-6, 1e-12);
  EXPECT_EQ(gemm.self_s, 0);
}

TEST(Phases, ExchangeIsWhatTheFabricsCallsCover) {
  EXPECT_EQ(covered({}), 0);
  EXPECT_EQ(covered({{50, 70}, {10, 30}, {20, 40}, {52, 60}}), 50);
  RankTrace rank{.events = some_events()};
  rank.calls = {{.name = "all_reduce", .begin_ns = 0, .end_ns = 30'000},
                {.name = "barrier", .begin_ns = 20'000, .end_ns = 40'000}};
  const auto profile = summarize(rank, 250e-6);
  EXPECT_NEAR(profile.phases[1], 100e-6, 1e-12);  // forward
  EXPECT_NEAR(profile.phases[6], 150e-6, 1e-12);  // other
  EXPECT_NEAR(profile.phases[7], 40e-6, 1e-12);   // exchange
}

TEST(RankProfile, HasThePhasesOfTheLastStepWithTheirMicroBatches) {
  const auto mark = [](const char* name, std::int64_t begin_us, std::int64_t end_us) {
    return ProfiledEvent{.kind = Kind::mark,
                         .name = name,
                         .begin_ns = 1000 * begin_us,
                         .end_ns = 1000 * end_us,
                         .thread = 1};
  };
  RankTrace rank{.clock_ahead_ns = 500'000, .last_step_ns = 500'000};
  rank.events = {mark("bimetal::forward", 100, 200),
                 mark("step 2", 1000, 2000),
                 mark("backward of micro-batch 1", 1310, 1390),
                 mark("bimetal::backward", 1300, 1400),
                 mark("waiting for forward of micro-batch 12 in chunk 1", 1210, 1290),
                 mark("bimetal::bubble", 1200, 1300),
                 mark("bimetal::update", 1500, 1600)};
  const auto profile = summarize(rank, 1e-3);
  std::vector<std::string> told;
  for (const auto& span : profile.spans) {
    told.push_back(fmt::format("{} {} {:.0f}-{:.0f}", kPhases[static_cast<std::size_t>(span.phase)],
                               span.micro_batch, 1e6 * span.begin_s, 1e6 * span.end_s));
  }
  EXPECT_EQ(told, (std::vector<std::string>{"bubble 12 200-300", "backward 1 300-400",
                                            "update -1 500-600"}));
}

TEST(RankProfile, SurvivesItsWay) {
  RankTrace rank{.events = some_events()};
  const auto sent = summarize(rank, 1.5);
  const auto bytes = encode(sent);
  const auto got = decode(bytes);
  EXPECT_EQ(got.seconds, sent.seconds);
  EXPECT_EQ(got.phases, sent.phases);
  EXPECT_EQ(got.operations, sent.operations);
  EXPECT_EQ(got.trace, sent.trace);
  ASSERT_EQ(got.spans.size(), 1u);
  EXPECT_EQ(got.spans[0].end_s, sent.spans[0].end_s);
  EXPECT_THROW(decode(std::span(bytes).first(20)), Error);
}

TEST(ClockOffsets, FindClocksThatAreHoursApart) {
  bimetal::testing::run_ranks(3, [](int rank, comm::Group group) {
    const std::int64_t ahead = rank * std::int64_t{3'600'000'000'000};
    const auto offsets = clock_offsets(group, Deadline::after(std::chrono::seconds(30)),
                                       [=] { return wall_clock_ns() + ahead; });
    ASSERT_EQ(offsets.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto expected = static_cast<std::int64_t>(i) * 3'600'000'000'000;
      EXPECT_LE(std::abs(offsets[i].ns - expected), offsets[i].error_ns) << i;
      EXPECT_LT(offsets[i].error_ns, 1'000'000'000) << "the quickest of many answers";
    }
  });
}

}  // namespace
}  // namespace bimetal::train
