// mpi_peer WHAT: one rank of a job that mpirun has started; the tests of the MPI transport run it.
// It says "rank R is process P" first, and ends with a line that begins "rank R:".
//
// check   every collective against the plain reference, on two meshes at once and in a subgroup;
//         messages far ahead of their receiver, and from any rank differ the ranks disagree about a
// call, and are told work reduces until it is killed stop the last rank stops itself in the middle
// of the work: the others must say so in time idle waits for two seconds of nothing, and tells
// which part of a core that took

#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/comm/group.h"
#include "bimetal/launch/meet.h"
#include "bimetal/launch/rank_environment.h"
#include "portability/fabric_checks.h"

namespace bimetal::testing {
namespace {

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

comm::Group meet_others(std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const auto env =
      launch::find_rank(comm::Transport::automatic, Deadline::after(std::chrono::seconds(60)));
  if (!env) throw Error(ErrorCode::InvalidArgument, "mpi_peer was not started as a rank");
  launch::JoinOptions options;
  options.group.timeout = timeout;
  return launch::meet(*env, options);
}

class Check {
 public:
  void run() {
    auto group = meet_others();
    rank_ = group.rank();
    say(fmt::format("rank {} is process {}", rank_, getpid()));
    const OnWrong tell = [this](const std::string& what) {
      ++wrong_;
      say(fmt::format("rank {} finds {}", rank_, what));
    };
    auto other = meet_others();  // a second mesh
    int calls = check_collectives(group, tell);
    std::vector<int> backwards(static_cast<std::size_t>(group.size()));
    std::iota(backwards.rbegin(), backwards.rend(), 0);
    calls += check_collectives(group.subgroup(backwards), tell);
    both_at_once(group, other);
    far_ahead(group);
    from_anybody(group);
    say(fmt::format("rank {}: {} calls, {} wrong, by {}", rank_, calls, wrong_,
                    to_string(other.transport())));
    if (wrong_ > 0) std::exit(EXIT_FAILURE);
  }

 private:
  void expect(bool right, std::string_view what) {
    if (right) return;
    ++wrong_;
    say(fmt::format("rank {} finds wrong: {}", rank_, what));
  }

  // Long messages on two meshes: neither may take the other's.
  void both_at_once(comm::Group group, comm::Group other) {
    constexpr std::size_t kCount = 3'000'001;
    std::vector<float> a(kCount, 1), b(kCount, 2);
    const auto first = group.all_reduce(comm::buffer(a));
    const auto second = other.all_reduce(comm::buffer(b));
    first.wait();
    second.wait();
    const auto n = static_cast<float>(group.size());
    expect(std::count(a.begin(), a.end(), n) == kCount, "the sum of one mesh");
    expect(std::count(b.begin(), b.end(), 2 * n) == kCount, "the sum of another mesh");
  }

  // Many messages, short and long, before their receiver takes the first.
  void far_ahead(comm::Group group) {
    if (group.size() < 2 || rank_ > 1) return group.barrier().wait();
    constexpr int kMessages = 300;
    std::vector<comm::Work> works;
    std::vector<std::vector<std::int32_t>> data;
    for (int i = 0; i < kMessages; ++i) {
      const std::size_t count = i % 30 == 0 ? 300'000 : 10;
      data.emplace_back(count, rank_ == 0 ? i : -1);
      if (rank_ == 0) works.push_back(group.send(comm::buffer(data.back()), 1, 5));
    }
    if (rank_ == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      for (auto& message : data) group.recv(comm::buffer(message), 0, 5).wait();
    }
    for (const auto& work : works) work.wait();
    for (int i = 0; i < kMessages; ++i) {
      const auto& message = data[static_cast<std::size_t>(i)];
      expect(message.front() == i && message.back() == i, "a message sent far ahead");
    }
    group.barrier().wait();
  }

  // Messages of all others, before and after rank 0 asks for them, each with its sender's contents.
  void from_anybody(comm::Group group) {
    constexpr int kEach = 20;
    const int messages = rank_ == 0 ? kEach * (group.size() - 1) : kEach;
    std::vector<comm::Work> works;
    std::vector<std::vector<std::int32_t>> data;
    for (int i = 0; i < messages; ++i) {
      data.emplace_back(i % 5 == 0 ? 300'000 : 10, rank_ == 0 ? -1 : 100 * rank_ + i);
    }
    for (int i = 0; i < messages; ++i) {
      const auto buffer = comm::buffer(data[static_cast<std::size_t>(i)]);
      // A tag for each length: which message comes next is open.
      const std::uint64_t tag = buffer.count;
      works.push_back(rank_ == 0 ? group.recv_from_anybody(buffer, tag)
                                 : group.send(buffer, 0, tag));
      if (rank_ != 0 || i != messages / 2) continue;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    for (int i = 0; i < messages; ++i) {
      const auto& work = works[static_cast<std::size_t>(i)];
      const auto& message = data[static_cast<std::size_t>(i)];
      work.wait();
      if (rank_ != 0) continue;
      expect(work.sender() > 0 && message.front() / 100 == work.sender(), "the sender's rank");
      expect(message.front() == message.back(), "a message from anybody");
    }
    group.barrier().wait();
  }

  int rank_ = -1;
  int wrong_ = 0;
};

void differ() {
  auto group = meet_others();
  auto other = meet_others();
  say(fmt::format("rank {} is process {}", group.rank(), getpid()));
  bool told = true;
  check_mismatch(group, [&](const std::string& what) {
    told = false;
    say(fmt::format("rank {} finds {}", group.rank(), what));
  });
  other.barrier().wait();  // a failed group is no concern of another mesh
  if (told) say(fmt::format("rank {}: told", group.rank()));
}

void work() {
  auto group = meet_others();
  say(fmt::format("rank {} is process {}", group.rank(), getpid()));
  std::vector<float> data(1 << 20);
  group.all_reduce(comm::buffer(data)).wait();
  say(fmt::format("rank {}: works", group.rank()));
  for (;;) group.all_reduce(comm::buffer(data)).wait();
}

void stop() {
  auto group = meet_others(std::chrono::seconds(2));
  say(fmt::format("rank {} is process {}", group.rank(), getpid()));
  std::vector<float> data(1 << 20);
  group.all_reduce(comm::buffer(data)).wait();
  if (group.rank() == group.size() - 1) raise(SIGSTOP);
  try {
    for (;;) group.all_reduce(comm::buffer(data)).wait();
  } catch (const Error& error) {
    // The memory is this rank's again: that must not disturb what MPI still does.
    std::vector<float>().swap(data);
    say(fmt::format("rank {}: {}: {}", group.rank(), to_string(error.code()), error.what()));
    throw;
  }
}

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void idle() {
  auto group = meet_others();
  group.barrier().wait();
  const double before = processor_seconds();
  const Stopwatch clock;
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const double share = (processor_seconds() - before) / clock.seconds();
  group.barrier().wait();
  say(fmt::format("rank {}: idle at {:.4f} of a core", group.rank(), share));
}

int run(std::string_view what) {
  if (what == "check") {
    Check().run();
  } else if (what == "differ") {
    differ();
  } else if (what == "work") {
    work();
  } else if (what == "stop") {
    stop();
  } else if (what == "idle") {
    idle();
  } else {
    throw Error(ErrorCode::InvalidArgument, "mpi_peer check|differ|work|stop|idle");
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace bimetal::testing

int main(int argc, char** argv) {
  using namespace bimetal;
  try {
    if (const auto level = log_level_from_environment()) {
      set_log_sink([](LogLevel, std::string_view message) { fmt::print(stderr, "{}\n", message); },
                   *level);
    }
    return testing::run(argc > 1 ? argv[1] : "");
  } catch (const Error& error) {
    testing::say(fmt::format("error: {}: {}", to_string(error.code()), error.what()));
    return EXIT_FAILURE;
  }
}
