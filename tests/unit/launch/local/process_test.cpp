#include "bimetal/launch/local/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/pipe.h"
#include "support/errors.h"

namespace bimetal::launch {
namespace {

using ::testing::HasSubstr;

ProcessExit wait_for(Process& process) {
  for (;;) {
    if (const auto exit = process.poll()) return *exit;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

/// The output of a shell command to its descriptor 4.
std::string output_of(const std::string& script, ProcessCommand command = {}) {
  auto pipe = Pipe::create();
  command.argv = {"/bin/sh", "-c", script};
  command.descriptors.push_back({4, pipe.write.number()});
  auto process = Process::start(command);
  pipe.write.close();
  wait_for(process);
  std::string text;
  read_available(pipe.read, text);
  return text;
}

TEST(Process, TellsStatusAndSignalApart) {
  auto by_itself = Process::start({{"/bin/sh", "-c", "exit 7"}, {}, {}});
  const auto status = wait_for(by_itself);
  EXPECT_EQ(status.status, 7);
  EXPECT_EQ(status.signal, 0);

  auto killed = Process::start({{"/bin/sh", "-c", "kill -9 $$"}, {}, {}});
  EXPECT_EQ(wait_for(killed).signal, SIGKILL);
}

TEST(Process, HowItEndedIsTold) {
  EXPECT_EQ(how_it_ended({3, 0}), "ended with exit status 3");
  EXPECT_EQ(how_it_ended({0, SIGKILL}), "was killed by signal 9 (Killed)");
  // As Windows' own are known: this one says that a library has not been found.
  EXPECT_EQ(how_it_ended({static_cast<int>(0xc0000135), 0}), "ended with exit status 0xc0000135");
}

TEST(Process, IsNothingWhileItRuns) {
  auto process = Process::start({{"/bin/sleep", "60"}, {}, {}});
  EXPECT_FALSE(process.poll());
  process.send(SIGTERM);
  EXPECT_EQ(wait_for(process).signal, SIGTERM);
}

TEST(Process, HandsOnVariablesAndDescriptors) {
  ProcessCommand command;
  command.environment = {{"BIMETAL_TEST_WORD", "hello world"}};
  EXPECT_EQ(output_of("printf '%s' \"$BIMETAL_TEST_WORD\" >&4", command), "hello world");
}

TEST(Process, HandsOnNothingElse) {
  const auto pipe = Pipe::create();
  const auto script = "[ -e /dev/fd/" + std::to_string(pipe.read.number()) + " ] && echo open >&4";
  EXPECT_EQ(output_of(script), "");
}

TEST(Process, HasAnEmptyStandardInput) {
  EXPECT_EQ(output_of("cat >&4"), "");
}

TEST(Process, HasAGroupOfItsOwn) {
  auto process = Process::start({{"/bin/sleep", "60"}, {}, {}});
  EXPECT_EQ(::getpgid(process.pid()), process.pid());
}

TEST(Process, NamesAProgramThatCannotBeStarted) {
  expect_error(ErrorCode::System, {"/no/such/program"}, [&] {
    Process::start({{"/no/such/program"}, {}, {}});
  });
}

TEST(Process, KnowsItsOwnProgram) {
  EXPECT_THAT(own_program().filename().string(), HasSubstr("unit_launch"));
}

}  // namespace
}  // namespace bimetal::launch
