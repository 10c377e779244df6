#include "bimetal/fabric_bench/run_bench.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/fabric_bench/measure.h"
#include "bimetal/fabric_bench/report.h"
#include "bimetal/launch/find_rank.h"
#include "bimetal/launch/local/lifeline.h"
#include "bimetal/launch/local/local_launcher.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/local/status_pipe.h"
#include "bimetal/launch/local/stop_request.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::fabric_bench {
namespace {

comm::GroupOptions group_options(const BenchOptions& options) {
  comm::GroupOptions group;
  group.timeout = milliseconds_of(options.timeout_s);
  return group;
}

void be_rank(const launch::RankEnvironment& env, const BenchOptions& options, const Join& join) {
  launch::JoinOptions joining;
  joining.token = net::Token::from_environment();
  joining.group = group_options(options);
  auto group = join(env, joining);
  bench_in(group, options);
  // Nobody leaves while another still measures.
  group.barrier().wait();
}

int run_rank(const launch::RankEnvironment& env, const BenchOptions& options,
             const BenchProgram& program) {
  launch::watch_lifeline(program.exit_status(ErrorCode::Aborted));
  launch::StatusReporter status;
  try {
    be_rank(env, options, program.join);
    return 0;
  } catch (const Error& error) {
    if (!status.connected()) throw;
    status.failed(error);
    return program.exit_status(error.code());
  }
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

}  // namespace

void bench_in(comm::Group group, const BenchOptions& options) {
  const auto all = sizes(options);
  std::optional<Report> report;
  if (group.rank() == 0) report.emplace(options, group.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (report) report->announce(all[i], i + 1, all.size());
    const auto measurement = measure(group, options, all[i]);
    if (report) report->add(measurement);
  }
  if (report) report->finish();
}

int run_bench(const BenchOptions& options, const BenchProgram& program) {
  sizes(options);  // complains before anything is started
  // For this process or the ranks that it starts.
  if (options.transport != "auto") ::setenv("BIMETAL_TRANSPORT", options.transport.c_str(), 1);
  if (options.algorithm != "auto") ::setenv("BIMETAL_ALGORITHM", options.algorithm.c_str(), 1);
  const auto join_by = Deadline::after(launch::JoinOptions{}.join_timeout);
  if (const auto env = launch::find_rank(comm::Transport::automatic, join_by)) {
    return run_rank(*env, options, program);
  }
  if (options.ranks > 1) return start_ranks(options, program);
  bench_in(launch::single_process_world(group_options(options)), options);
  return 0;
}

}  // namespace bimetal::fabric_bench
