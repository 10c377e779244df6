#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>

#include "bimetal/fabric_bench/report.h"
#include "bimetal/launch/local/local_launcher.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/local/status_pipe.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::fabric_bench {

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

int start_ranks(const BenchOptions& options, const BenchProgram& program) {
  launch::LaunchPlan plan;
  std::vector<std::string> command = {launch::own_program().string()};
  command.insert(command.end(), program.leading_words.begin(), program.leading_words.end());
  const auto words = to_arguments(options);
  command.insert(command.end(), words.begin(), words.end());
  for (int rank = 0; rank < options.ranks; ++rank) {
    plan.ranks.push_back({fmt::format("rank {} of this machine", rank), command});
  }
  plan.world_size = options.ranks;
  plan.token = net::Token::generate();
  plan.grace_after_failure = std::chrono::seconds(2);
  plan.grace_after_finish = std::chrono::seconds(10);
  const rendezvous::StoreServer server({"127.0.0.1", 0}, plan.token);
  plan.store = server.endpoint();
  launch::SignalWatch signals;
  return launch::run_ranks(plan, signals).interrupted ? launch::kInterruptedStatus : 0;
}

int be_rank(const BenchProgram& program, const std::function<void()>& work) {
  launch::watch_lifeline(program.exit_status(ErrorCode::Aborted));
  launch::StatusReporter status;
  try {
    work();
    return 0;
  } catch (const Error& error) {
    if (!status.connected()) throw;
    status.failed(error);
    return program.exit_status(error.code());
  }
}

}  // namespace bimetal::fabric_bench
