#include "bimetal/fabric_bench/run_bench.h"

#include <optional>

#include "bimetal/base/deadline.h"
#include "bimetal/fabric_bench/local_ranks.h"
#include "bimetal/fabric_bench/measure.h"
#include "bimetal/fabric_bench/report.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/launch/system/environment.h"

namespace bimetal::fabric_bench {
namespace {

comm::GroupOptions group_options(const BenchOptions& options) {
  comm::GroupOptions group;
  group.timeout = milliseconds_of(options.timeout_s);
  return group;
}

int run_rank(const launch::RankEnvironment& env, const BenchOptions& options,
             const BenchProgram& program) {
  return be_rank(program, [&] {
    launch::JoinOptions joining;
    joining.token = net::Token::from_environment();
    joining.group = group_options(options);
    auto group = program.join(env, joining);
    bench_in(group, options);
    // Nobody leaves while another still measures.
    group.barrier().wait();
  });
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
  if (options.transport != "auto") {
    launch::set_environment_variable("BIMETAL_TRANSPORT", options.transport);
  }
  if (options.algorithm != "auto") {
    launch::set_environment_variable("BIMETAL_ALGORITHM", options.algorithm);
  }
  const auto join_by = Deadline::after(launch::JoinOptions{}.join_timeout);
  if (const auto env = launch::find_rank(comm::Transport::automatic, join_by)) {
    return run_rank(*env, options, program);
  }
  if (options.ranks > 1) return start_ranks(options, program);
  bench_in(launch::single_process_world(group_options(options)), options);
  return 0;
}

}  // namespace bimetal::fabric_bench
