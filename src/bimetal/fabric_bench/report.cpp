#include "bimetal/fabric_bench/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/fabric_bench/measure.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/launch/system/environment.h"

namespace bimetal::fabric_bench {
namespace {

constexpr const char* kClearLine = "\r\x1b[K";

nlohmann::json to_json(const Measurement& m) {
  return {{"bytes", m.bytes},
          {"iterations", m.iterations},
          {"mean_us", m.mean_s * 1e6},
          {"least_us", m.least_s * 1e6},
          {"p50_us", m.median_s * 1e6},
          {"p99_us", m.p99_s * 1e6},
          {"algorithm_gbytes_per_s", m.algorithm_bytes_per_s() * 1e-9},
          {"bus_gbytes_per_s", m.bus_bytes_per_s() * 1e-9},
          {"cpu_us", m.cpu_s * 1e6}};
}

}  // namespace

std::string size_text(std::size_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

Report::Report(const BenchOptions& options, int ranks)
    : options_(options), ranks_(ranks), announces_(may_rewrite(STDERR_FILENO)) {
  if (options_.json) return;
  const auto parts = options_.shards.empty()
                         ? std::string()
                         : fmt::format(", parts {}", fmt::join(options_.shards, " : "));
  write(fmt::format("{} of {}, {} ranks, transport {}, algorithm {}, compression {}{}\n",
                    comm::to_string(options_.operation), comm::to_string(options_.dtype), ranks,
                    options_.transport, options_.algorithm, to_string(options_.compression.scheme),
                    parts));
  write(fmt::format("{:>10} {:>7} {:>11} {:>11} {:>11} {:>10} {:>10} {:>10}\n", "size", "runs",
                    "mean µs", "p50 µs", "p99 µs", "alg GB/s", "bus GB/s", "CPU ns/B"));
}

void Report::announce(std::size_t bytes, std::size_t number, std::size_t of) {
  if (!announces_) return;
  fmt::print(stderr, "{}{} of {} sizes: {} …", kClearLine, number, of, size_text(bytes));
  std::fflush(stderr);
}

void Report::clear_announcement() {
  if (!announces_) return;
  fmt::print(stderr, "{}", kClearLine);
  std::fflush(stderr);
}

void Report::add(const Measurement& m) {
  clear_announcement();
  measurements_.push_back(m);
  if (options_.json) return;
  const auto per_byte = m.bytes > 0 ? m.cpu_s * 1e9 / static_cast<double>(m.bytes) : 0;
  write(fmt::format("{:>10} {:>7} {:>11.1f} {:>11.1f} {:>11.1f} {:>10.3f} {:>10.3f} {:>10.2f}\n",
                    size_text(m.bytes), m.iterations, m.mean_s * 1e6, m.median_s * 1e6,
                    m.p99_s * 1e6, m.algorithm_bytes_per_s() * 1e-9, m.bus_bytes_per_s() * 1e-9,
                    per_byte));
}

void Report::finish() {
  if (!options_.json) return;
  nlohmann::json report = {{"operation", comm::to_string(options_.operation)},
                           {"dtype", comm::to_string(options_.dtype)},
                           {"ranks", ranks_},
                           {"transport", options_.transport},
                           {"algorithm", options_.algorithm},
                           {"compress", to_string(options_.compression.scheme)},
                           {"shards", options_.shards},
                           {"verified", options_.verify},
                           {"results", nlohmann::json::array()}};
  for (const auto& m : measurements_) report["results"].push_back(to_json(m));
  write(report.dump(2) + "\n");
}

void Report::write(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return;
  }
  throw system_error("cannot write the benchmark's figures", errno);
}

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
