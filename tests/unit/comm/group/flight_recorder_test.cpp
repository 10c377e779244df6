#include "bimetal/comm/group/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/temporary_folder.h"
#include "support/thread_ranks.h"
#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#endif

namespace bimetal::comm {
namespace {

using namespace std::chrono_literals;
using comm::buffer;
using ::testing::HasSubstr;
using ::testing::Not;

Call all_reduce(std::uint64_t sequence) {
  return {.operation = Operation::all_reduce,
          .dtype = DType::float32,
          .reduce_op = ReduceOp::sum,
          .count = 10,
          .sequence = sequence};
}

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(FlightRecorder, TellsHowFarEachCallGot) {
  FlightRecorder recorder(2, 4);
  recorder.created(0, 4, all_reduce(7), 5s);
  EXPECT_THAT(recorder.json(), HasSubstr(R"("state": "scheduled")"));
  const auto id = recorder.created(0, 4, all_reduce(8), 5s);
  recorder.started(id);
  recorder.chose(id, "ring");
  EXPECT_THAT(recorder.json(), HasSubstr(R"("state": "started")"));
  EXPECT_THAT(recorder.json(), Not(HasSubstr("completed\"")));
  recorder.completed(id, std::nullopt);
  const std::string text = recorder.json();
  for (const char* part :
       {R"("rank": 2)", R"("world_size": 4)", R"("collective_seq_id": 8)", R"("is_p2p": false)",
        R"("profiling_name": "bimetal:all_reduce")", R"("input_sizes": [[10]])",
        R"("input_dtypes": ["float32"])", R"("timeout_ms": 5000)", R"("state": "completed")",
        R"("reduce_op": "sum")", R"("algorithm": "ring")", R"("error": null)"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(FlightRecorder, KnowsOfCallsThatAreOverAtOnce) {
  FlightRecorder recorder(0, 2);
  recorder.passed(0, 2, all_reduce(3), "shared memory at once");
  EXPECT_THAT(recorder.json(), HasSubstr(R"("state": "completed")"));
  EXPECT_THAT(recorder.json(), HasSubstr(R"("algorithm": "shared memory at once")"));
}

TEST(FlightRecorder, TellsWhoWasWaitedForWhenItFailed) {
  FlightRecorder recorder(0, 3);
  const auto id = recorder.created(1, 3, all_reduce(0), 1s);
  recorder.started(id);
  recorder.waits_for(id, {1, 2});
  recorder.completed(id, Failure{ErrorCode::PeerLost, "rank 1 (\"mac\") is gone", 1});
  const std::string text = recorder.json();
  EXPECT_THAT(text, HasSubstr(R"("waiting_for": [1, 2])"));
  EXPECT_THAT(text, HasSubstr(R"("state": "started")"));
  EXPECT_THAT(text, HasSubstr(R"("code": "peer_lost", "rank": 1)"));
  EXPECT_THAT(text, HasSubstr(R"(rank 1 (\"mac\") is gone)"));
}

TEST(FlightRecorder, KeepsTheLastThousand) {
  FlightRecorder recorder(0, 1);
  constexpr std::uint64_t kCalls = 2500;
  const auto first = recorder.created(0, 1, all_reduce(0), 1s);
  for (std::uint64_t i = 1; i < kCalls; ++i) recorder.created(0, 1, all_reduce(i), 1s);
  recorder.completed(first, std::nullopt);  // forgotten: harms no other entry
  const std::string text = recorder.json();
  EXPECT_EQ(times(text, "\"record_id\""), FlightRecorder::kEntries);
  EXPECT_THAT(text, HasSubstr(R"("collective_seq_id": 2499,)"));
  EXPECT_THAT(text, HasSubstr(R"("collective_seq_id": 1500,)"));
  EXPECT_THAT(text, Not(HasSubstr(R"("collective_seq_id": 1499,)")));
  EXPECT_THAT(text, Not(HasSubstr("completed\"")));
}

#if __has_include(<nlohmann/json.hpp>)
TEST(FlightRecorder, IsJson) {
  FlightRecorder recorder(0, 3);
  for (int i = 0; i < 3; ++i) {
    const auto id = recorder.created(static_cast<std::uint32_t>(i), 3, all_reduce(0), 1s);
    if (i == 0) continue;
    recorder.started(id);
    recorder.waits_for(id, {1});
    recorder.completed(id, Failure{ErrorCode::Timeout, "line\nand \xff", {}});
  }
  const auto dump = nlohmann::json::parse(recorder.json());
  ASSERT_EQ(dump["entries"].size(), 3u);
  EXPECT_EQ(dump["pg_config"].size(), 3u);
  EXPECT_TRUE(dump["entries"][0]["time_discovered_started_ns"].is_null());
  EXPECT_EQ(dump["entries"][2]["error"]["message"], "line\nand \xef\xbf\xbd");
  EXPECT_TRUE(dump["entries"][2]["error"]["rank"].is_null());
  EXPECT_TRUE(nlohmann::json::parse(FlightRecorder(0, 1).json())["entries"].empty());
}
#endif

TEST(FlightRecorder, EveryRankHasAFileOfItsOwn) {
  const test::TemporaryFolder folder;
  using Path = std::filesystem::path;
  EXPECT_EQ(FlightRecorder::file_for("", 3), Path());
  EXPECT_EQ(FlightRecorder::file_for(folder.path().string(), 3), folder / "flight_rank_3.json");
  EXPECT_EQ(FlightRecorder::file_for("/tmp/dump.json", 3), Path("/tmp/dump_rank_3.json"));
  EXPECT_EQ(FlightRecorder::file_for("dump", 3), Path("dump_rank_3"));
}

TEST(FlightRecorder, IsWrittenBeforeTheFailedCallsWaiterWakes) {
  const test::TemporaryFolder folder;
  GroupOptions options;
  options.flight_recorder = folder.path().string();
  auto groups = bimetal::testing::make_thread_groups(2, options);
  std::vector<float> data(10);
  groups[0].all_reduce(buffer(data));
  EXPECT_THROW(groups[1].broadcast(buffer(data), 0).wait(), Error);
  EXPECT_TRUE(test::names_in(folder.path()).contains("flight_rank_1.json"));
  EXPECT_THAT(test::contents_of(folder / "flight_rank_1.json"), HasSubstr("call_mismatch"));
  EXPECT_THAT(groups[1].flight_recorder(), HasSubstr("bimetal:broadcast"));
}

// A rank that computes while another one is lost learns of it from its next call.
TEST(FlightRecorder, IsWrittenByTheFirstCallAfterAFailureThatCaughtNone) {
  const test::TemporaryFolder folder;
  GroupOptions options;
  options.flight_recorder = folder.path().string();
  auto groups = bimetal::testing::make_thread_groups(2, options);
  groups[0].abort("enough");
  EXPECT_THROW(
      {
        for (;;) {  // until the word of it has come
          std::vector<float> data(1);
          groups[1].send(buffer(data), 0).wait();
        }
      },
      Error);
  EXPECT_THAT(test::contents_of(folder / "flight_rank_1.json"), HasSubstr("enough"));
}

// A caller that uses a group which it has closed itself has not lost anything.
TEST(FlightRecorder, IsNotWrittenForCallsOfAClosedGroup) {
  const test::TemporaryFolder folder;
  GroupOptions options;
  options.flight_recorder = folder.path().string();
  auto groups = bimetal::testing::make_thread_groups(2, options);
  groups[0].close(Deadline::after(5s));
  EXPECT_THROW(groups[0].barrier().wait(), Error);
  EXPECT_FALSE(test::names_in(folder.path()).contains("flight_rank_0.json"));
}

TEST(FlightRecorder, AFileThatCannotBeWrittenHurtsNobody) {
  GroupOptions options;
  options.flight_recorder = "/nowhere/at/all.json";
  auto groups = bimetal::testing::make_thread_groups(2, options);
  groups[0].abort("enough");
  try {
    groups[1].barrier().wait();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "enough");
  }
}

}  // namespace
}  // namespace bimetal::comm
