// main() of the GoogleTest programs. With BIMETAL_TEST_SUITE=NAME it runs the cases of that suite,
// each in a process forked from this one: none sees what another has left behind, one that crashes
// or hangs costs no other, and libtorch, which takes longer to load than most cases take, is loaded
// once for all. With BIMETAL_CASES=together, too, all run in one forked process, for suites whose
// cases share what is dear to compute. A case, and what comes before it and after it, may take
// BIMETAL_CASE_SECONDS each. With BIMETAL_ENDS=quick only the last case's process ends as programs
// do. The last line counts (scripts/run_tests.py). Without the first variable it does what
// GoogleTest's own main does.

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

// The statuses with which a process of cases ends. It may end with any other, 0 too, when a case
// ends it.
constexpr int kFailed = 75;
constexpr int kPassed = 76;
constexpr int kSkipped = 77;

struct Counts {
  int passed = 0, failed = 0, skipped = 0;
};

// A line for each case, after what it complains of, and one before it where `announced`; and the
// alarm clock, whose signal ends the process.
class Lines : public testing::EmptyTestEventListener {
 public:
  Lines(unsigned seconds, bool announced) : seconds_(seconds), announced_(announced) {}

 private:
  void OnTestStart(const testing::TestInfo& test) override {
    ::alarm(seconds_);
    if (!announced_) return;
    std::printf("%11s%s.%s\n", "", test.test_suite_name(), test.name());
    std::fflush(stdout);
  }

  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (part.passed()) return;
    const char* file = part.file_name() ? part.file_name() : "?";
    std::printf("%s:%d: %s\n", file, part.line_number(), part.message());
    std::fflush(stdout);  // the process may come to a bad end before the case does
  }

  void OnTestEnd(const testing::TestInfo& test) override {
    ::alarm(seconds_);
    const auto& result = *test.result();
    const char* verdict = result.Failed() ? "FAILED" : result.Skipped() ? "skipped" : "passed";
    std::printf("%7.2f s  %s.%s: %s\n", result.elapsed_time() / 1000.0, test.test_suite_name(),
                test.name(), verdict);
    std::fflush(stdout);
  }

  unsigned seconds_;
  bool announced_;
};

// Those that the filter chooses, in this process.
Counts run(const std::string& filter, unsigned seconds, bool announced) {
  GTEST_FLAG_SET(filter, filter);
  auto& all = *testing::UnitTest::GetInstance();
  delete all.listeners().Release(all.listeners().default_result_printer());
  all.listeners().Append(new Lines(seconds, announced));
  ::alarm(seconds);
  const bool failed = RUN_ALL_TESTS() != 0;
  Counts counts{.passed = all.successful_test_count(),
                .failed = all.failed_test_count(),
                .skipped = all.skipped_test_count()};
  if (failed && counts.failed == 0) counts.failed = 1;  // what belongs to no case
  return counts;
}

// Prints the last line; returns whether the suite passes.
bool conclude(const Counts& counts) {
  std::printf("cases: %d passed, %d failed, %d skipped\n", counts.passed, counts.failed,
              counts.skipped);
  return counts.failed == 0 && counts.passed + counts.skipped > 0;
}

std::vector<std::string> cases_of(const std::string& suite) {
  std::vector<std::string> names;
  const auto& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const auto& one = *all.GetTestSuite(s);
    for (int t = 0; one.name() == suite && t < one.total_test_count(); ++t) {
      names.push_back(suite + "." + one.GetTestInfo(t)->name());
    }
  }
  return names;
}

// As programs end, which takes libtorch ten times as long as most cases take.
[[noreturn]] void end(int status, unsigned seconds) {
  ::alarm(seconds);
  std::exit(status);
}

[[noreturn]] void be_case(const std::string& name, unsigned seconds, bool quick) {
  const Counts counts = run(name, seconds, false);
  const bool good = counts.failed == 0 && counts.passed + counts.skipped == 1;
  const int status = !good ? kFailed : counts.skipped > 0 ? kSkipped : kPassed;
  if (!quick) end(status, seconds);
  std::fflush(nullptr);
  ::_exit(status);
}

[[noreturn]] void be_suite(const std::string& suite, unsigned seconds) {
  end(conclude(run(suite + ".*", seconds, true)) ? kPassed : kFailed, seconds);
}

// Why a process failed that ended in none of the three ways; empty if it did.
std::string misfortune(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return number == SIGALRM ? "out of time" : "ended by signal " + std::to_string(number);
  }
  const int code = WEXITSTATUS(status);
  if (code == kPassed || code == kFailed || code == kSkipped) return {};
  return "its process ended with " + std::to_string(code);
}

// Returns the status of `be` in a forked process, which is then gone with all processes that it has
// started.
template <typename Be>
int forked(const std::string& name, Be be) {
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // the group's signals, such as Ctrl-C's, miss it
    if (::getppid() != parent) ::_exit(kFailed);
    be();
  }
  std::string why = "no process can be forked";
  int status = kFailed << 8;
  if (child > 0) {
    siginfo_t ended = {};
    ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
    ::kill(-child, SIGKILL);  // before its number is free for others
    ::waitpid(child, &status, 0);
    why = misfortune(status);
  }
  if (why.empty()) return WEXITSTATUS(status);
  std::printf("%s: FAILED: %s\n", name.c_str(), why.c_str());
  return kFailed;
}

Counts run_alone(const std::vector<std::string>& names, unsigned seconds, bool quick) {
  Counts counts;
  for (const auto& name : names) {
    const bool last = name == names.back();
    const int code = forked(name, [&] { be_case(name, seconds, quick && !last); });
    ++(code == kPassed ? counts.passed : code == kSkipped ? counts.skipped : counts.failed);
  }
  return counts;
}

std::string taken(const char* variable) {
  const char* value = std::getenv(variable);
  const std::string text = value ? value : "";
  ::unsetenv(variable);  // what a case starts again, as death tests do, runs what it is told to
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const auto suite = taken("BIMETAL_TEST_SUITE"), how = taken("BIMETAL_CASES");
  const auto limit = taken("BIMETAL_CASE_SECONDS"), ends = taken("BIMETAL_ENDS");
  testing::InitGoogleTest(&argc, argv);
  if (suite.empty()) return RUN_ALL_TESTS();
  const unsigned seconds = limit.empty() ? 120 : static_cast<unsigned>(std::stoul(limit));
  if (how == "together") {
    return forked(suite, [&] { be_suite(suite, seconds); }) == kPassed ? 0 : 1;
  }
  return conclude(run_alone(cases_of(suite), seconds, ends == "quick")) ? 0 : 1;
}
