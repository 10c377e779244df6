// The launcher with shell scripts in place of ranks: real processes, real signals.

#include "bimetal/launch/local/local_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

namespace bimetal::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

LaunchPlan plan_of(const std::vector<std::string>& scripts) {
  LaunchPlan plan;
  for (const auto& script : scripts) {
    plan.ranks.push_back({"shell", {"/bin/sh", "-c", script}});
  }
  plan.world_size = static_cast<int>(scripts.size());
  plan.store = {"127.0.0.1", 4711};
  plan.token = net::Token::from_text("a secret of the job");
  plan.grace_after_failure = milliseconds(300);
  return plan;
}

/// Sends SIGINT to this process when the ranks have made `count` files in `folder`.
class InterruptWhenReady {
 public:
  InterruptWhenReady(const std::filesystem::path& folder, int count)
      : thread_([folder, count] {
          using Iterator = std::filesystem::directory_iterator;
          while (std::distance(Iterator(folder), Iterator()) < count) {
            std::this_thread::sleep_for(milliseconds(5));
          }
          ::kill(::getpid(), SIGINT);
        }) {}
  ~InterruptWhenReady() { thread_.join(); }

 private:
  std::thread thread_;
};

class LocalLauncher : public ::testing::Test {
 protected:
  LocalLauncher()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ("launcher-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~LocalLauncher() override { std::filesystem::remove_all(folder_); }

  std::string content(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string in_folder(const std::string& name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
  SignalWatch signals_;
};

/// How a job fails that must.
JobFailed failure_of(const LaunchPlan& plan, SignalWatch& signals) {
  try {
    run_ranks(plan, signals);
  } catch (const JobFailed& failure) {
    return failure;
  }
  throw std::runtime_error("the job has not failed");
}

TEST_F(LocalLauncher, HandsTheTokenOnByEnvironmentAlone) {
  const auto plan = plan_of({"echo $BIMETAL_TOKEN > " + in_folder("token") +
                             "; tr '\\0' ' ' < /proc/$$/cmdline > " + in_folder("cmdline")});
  run_ranks(plan, signals_);
  EXPECT_EQ(content("token"), "a secret of the job\n");
  EXPECT_THAT(content("cmdline"), ::testing::Not(HasSubstr("a secret of the job")));
}

TEST_F(LocalLauncher, ARankThatOthersHaveWaitedForInVainIsNotWaitedForAgain) {
  const std::string says =
      R"(echo '{"event":"error","code":"timeout","rank":1,"message":"no sign of rank 1"}' >&4; exit 4)";
  auto plan = plan_of({says, "kill -STOP $$; sleep 600"});
  plan.grace_after_failure = std::chrono::hours(1);
  plan.grace_when_stuck = milliseconds(100);
  const auto failure = failure_of(plan, signals_);
  EXPECT_EQ(failure.code(), ErrorCode::Timeout);
  EXPECT_THAT(failure.what(), HasSubstr("rank 0 (shell, pid "));
  EXPECT_THAT(failure.what(), HasSubstr("no sign of rank 1"));
}

const std::string kSaving = R"(echo '{"event":"rescue","state":0}' >&4; )";

TEST_F(LocalLauncher, ThoseWhoSaveWhatALostRankHadMayTakeTheirTime) {
  auto plan = plan_of({"kill -9 $$", kSaving + "sleep 1; touch " + in_folder("saved") + "; exit 3",
                       kSaving + "sleep 1; exit 3"});
  EXPECT_THAT(failure_of(plan, signals_).what(), HasSubstr("rank 0"));
  EXPECT_TRUE(std::filesystem::exists(in_folder("saved")));
}

TEST_F(LocalLauncher, OneThatIsStuckWhileItSavesIsKilledOnceTheOthersHaveEnded) {
  auto plan =
      plan_of({"kill -9 $$", kSaving + "kill -STOP $$; sleep 600", kSaving + "sleep 0.5; exit 3"});
  EXPECT_THAT(failure_of(plan, signals_).what(), HasSubstr("rank 0"));
}

TEST_F(LocalLauncher, TheLastOneIsKilledWhenItHasSavedForTooLong) {
  auto plan = plan_of({"kill -9 $$", kSaving + "sleep 600"});
  plan.longest_rescue = milliseconds(500);
  EXPECT_THAT(failure_of(plan, signals_).what(), HasSubstr("rank 0"));
}

TEST_F(LocalLauncher, OneThatWasWaitedForInVainMaySaveAllTheSame) {
  const std::string says =
      R"(echo '{"event":"error","code":"timeout","rank":1,"message":"no sign of rank 1"}' >&4; exit 4)";
  auto plan = plan_of(
      {"sleep 0.3; " + says, kSaving + "sleep 1; touch " + in_folder("saved") + "; exit 3"});
  plan.grace_when_stuck = milliseconds(100);
  EXPECT_THAT(failure_of(plan, signals_).what(), HasSubstr("rank 1"));
  EXPECT_TRUE(std::filesystem::exists(in_folder("saved")));
}

TEST_F(LocalLauncher, DoesNotBlameARankThatAnotherStoodInFor) {
  auto plan = plan_of({"kill -9 $$", "sleep 0.5; kill -6 $$", "sleep 30"});
  plan.ranks[0].copy = 1;
  const auto error = failure_of(plan, signals_);
  EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  EXPECT_THAT(error.what(), HasSubstr("signal 6"));
}

TEST_F(LocalLauncher, AJobGoesOnWhileAnotherStandsIn) {
  auto plan = plan_of({"kill -9 $$", "sleep 1; exit 0"});
  plan.ranks[0].copy = 1;
  EXPECT_NO_THROW(run_ranks(plan, signals_));
}

LaunchPlan plan_of_workers(const std::vector<std::string>& scripts) {
  auto plan = plan_of(scripts);
  for (auto& rank : plan.ranks) rank.expendable = true;
  return plan;
}

TEST_F(LocalLauncher, AJobThatWasStoppedAfterAWorkerWasKilledIsStopped) {
  const auto stopped = plan_of_workers({"kill -9 $$", "sleep 0.5; exit 130"});
  EXPECT_TRUE(run_ranks(stopped, signals_).interrupted);
  // The first one has left, and nobody was there to go on without the other.
  const auto lost = plan_of_workers({"exit 130", "sleep 0.5; kill -9 $$"});
  EXPECT_THAT(failure_of(lost, signals_).what(), HasSubstr("rank 1"));
}

/// Workers may still come from elsewhere; the other one that leads is elsewhere.
LaunchPlan plan_with_a_stopped_server() {
  auto plan = plan_of({"exit 0", "kill -STOP $$"});
  plan.only_these = false;
  plan.ranks[0].expendable = true;
  plan.ranks[1].copy = kCopyElsewhere;
  return plan;
}

TEST_F(LocalLauncher, ARankThatIsStoppedWhenTheJobIsOverIsKilled) {
  auto plan = plan_with_a_stopped_server();
  plan.ranks.erase(plan.ranks.begin());
  plan.ranks[0].name = "server";
  std::atomic<bool> failed = false;
  plan.on_failure = [&](int, const Error&) { failed = true; };
  plan.over = [asked = 0]() mutable { return ++asked > 1; };
  plan.grace_after_over = milliseconds(300);
  EXPECT_EQ(run_ranks(plan, signals_).left_behind, std::vector<std::string>{"server"});
  EXPECT_FALSE(failed) << "nobody is to go on without it: there is nothing left to do";
}

TEST_F(LocalLauncher, AWorkerThatHasEndedKnowsThatTheJobIsOver) {
  auto plan = plan_with_a_stopped_server();
  plan.grace_after_finish = milliseconds(300);
  EXPECT_NO_THROW(run_ranks(plan, signals_));
}

}  // namespace
}  // namespace bimetal::launch
