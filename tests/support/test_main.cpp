// main() of the GoogleTest programs. With BIMETAL_TEST_SUITE=NAME it runs the cases of that suite,
// each in a process forked from this one: none sees what another has left behind, one that crashes
// or hangs costs no other, and libtorch, which takes longer to load than most cases take, is loaded
// once for all. With BIMETAL_CASES=together, too, all run in this process, for suites whose cases
// share what is dear to compute. A case may take BIMETAL_CASE_SECONDS. The last line counts
// (scripts/ctest_suite.sh). Without the variable it does what GoogleTest's own main does.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int kFailed = 1;
constexpr int kSkipped = 77;

struct Counts {
  int passed = 0, failed = 0, skipped = 0;
};

// A line for each case, after what it complains of; and the alarm clock, whose signal ends the
// process.
class Lines : public testing::EmptyTestEventListener {
 public:
  explicit Lines(unsigned seconds) : seconds_(seconds) {}

 private:
  void OnTestStart(const testing::TestInfo&) override { ::alarm(seconds_); }

  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (part.passed()) return;
    const char* file = part.file_name() ? part.file_name() : "?";
    std::printf("%s:%d: %s\n", file, part.line_number(), part.message());
  }

  void OnTestEnd(const testing::TestInfo& test) override {
    ::alarm(0);
    const auto& result = *test.result();
    const char* verdict = result.Failed() ? "FAILED" : result.Skipped() ? "skipped" : "passed";
    std::printf("%7.2f s  %s.%s: %s\n", result.elapsed_time() / 1000.0, test.test_suite_name(),
                test.name(), verdict);
    std::fflush(stdout);
  }

  unsigned seconds_;
};

// Those that the filter chooses, in this process.
Counts run(const std::string& filter, unsigned seconds) {
  GTEST_FLAG_SET(filter, filter);
  auto& all = *testing::UnitTest::GetInstance();
  delete all.listeners().Release(all.listeners().default_result_printer());
  all.listeners().Append(new Lines(seconds));
  const bool failed = RUN_ALL_TESTS() != 0;
  Counts counts{.passed = all.successful_test_count(),
                .failed = all.failed_test_count(),
                .skipped = all.skipped_test_count()};
  if (failed && counts.failed == 0) counts.failed = 1;  // what belongs to no case
  return counts;
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

// The last case takes libtorch down as programs do, which takes ten times as long as most cases.
[[noreturn]] void be_case(const std::string& name, unsigned seconds, bool last) {
  ::setpgid(0, 0);
  const Counts counts = run(name, seconds);
  const bool good = counts.failed == 0 && counts.passed + counts.skipped == 1;
  const int status = !good ? kFailed : counts.skipped > 0 ? kSkipped : 0;
  if (last) std::exit(status);
  std::fflush(nullptr);
  ::_exit(status);
}

void run_alone(const std::string& name, unsigned seconds, bool last, Counts& counts) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) be_case(name, seconds, last);
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) status = kFailed << 8;
  if (WIFSIGNALED(status)) {
    ::kill(-child, SIGKILL);  // what it had started, and can no longer end itself
    const int number = WTERMSIG(status);
    const auto why =
        number == SIGALRM ? "out of time" : "ended by signal " + std::to_string(number);
    std::printf("%s: FAILED: %s\n", name.c_str(), why.c_str());
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
  ++(code == 0 ? counts.passed : code == kSkipped ? counts.skipped : counts.failed);
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
  const auto limit = taken("BIMETAL_CASE_SECONDS");
  testing::InitGoogleTest(&argc, argv);
  if (suite.empty()) return RUN_ALL_TESTS();
  const unsigned seconds = limit.empty() ? 120 : static_cast<unsigned>(std::stoul(limit));
  Counts counts;
  if (how == "together") {
    counts = run(suite + ".*", seconds);
  } else {
    const auto names = cases_of(suite);
    for (const auto& name : names) run_alone(name, seconds, name == names.back(), counts);
  }
  std::printf("cases: %d passed, %d failed, %d skipped\n", counts.passed, counts.failed,
              counts.skipped);
  return counts.failed > 0 || counts.passed + counts.skipped == 0 ? kFailed : 0;
}
