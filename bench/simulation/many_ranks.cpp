#include "simulation/many_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/membership/membership.h"
#include "bimetal/rendezvous/bootstrap.h"
#include "bimetal/rendezvous/store.h"

namespace simulation {
namespace {

using bimetal::Deadline;
namespace comm = bimetal::comm;
namespace net = bimetal::net;

constexpr std::chrono::minutes kToStart{10};
constexpr std::chrono::seconds kSilence{1};
constexpr std::uint16_t kStorePort = 29500;

comm::GroupOptions group_options() {
  comm::GroupOptions options;
  options.transport = comm::Transport::tcp;
  options.timeout = kToStart;
  return options;
}

/// The ranks, and the process that starts them.
class Job {
 public:
  explicit Job(const JobOptions& options) : options_(options), token_(net::Token::generate()) {}

  std::vector<Phase> run();

 private:
  void serve_store();
  void be_rank(int rank);
  comm::Group first_group(bimetal::rendezvous::Store& store, const std::string& host, int rank);
  bimetal::membership::Options member(const std::string& host, int rank) const;
  void add_up(comm::Group& group, std::size_t bytes, int ranks) const;
  int long_ones() const { return options_.long_bytes > 0 ? 2 : 0; }
  void check(const bimetal::membership::Change& change) const;

  // Ranks go through the phases together: each waits until the others have come.
  void arrive();
  void pass(const std::string& phase, int ranks);
  void let_pass();
  void note(const std::string& phase, Nanoseconds begun);
  void fail_if_any_has() const;
  std::vector<Traffic> traffic() const;

  const JobOptions options_;
  const net::Token token_;
  Process* store_ = nullptr;
  std::vector<Process*> ranks_;
  Waiters gate_;
  int arrived_ = 0, seen_loss_ = 0;
  std::vector<Traffic> before_;
  std::vector<Phase> phases_;
};

void Job::serve_store() {
  const bimetal::rendezvous::StoreServer server({current_process()->host(), kStorePort}, token_);
  Waiters for_ever;
  wait_in(for_ever, -1);
}

comm::Group Job::first_group(bimetal::rendezvous::Store& store, const std::string& host, int rank) {
  bimetal::rendezvous::BootstrapOptions bootstrap;
  bootstrap.token = token_;
  bootstrap.host_name = host;
  bootstrap.listen_host = host;
  bootstrap.peer_timeout = kSilence;
  return comm::make_group(bimetal::rendezvous::connect_mesh(store, rank, options_.ranks, bootstrap,
                                                            Deadline::after(kToStart)),
                          group_options());
}

bimetal::membership::Options Job::member(const std::string& host, int rank) const {
  bimetal::membership::Options options;
  options.listen = host;
  options.token = token_;
  options.host = host;
  options.worker = fmt::format("cpu of {}", rank);
  options.job = "simulated";
  options.silence = kSilence;
  options.group = group_options();
  return options;
}

void Job::add_up(comm::Group& group, std::size_t bytes, int ranks) const {
  std::vector<std::int32_t> numbers(bytes / sizeof(std::int32_t), 1);
  group.all_reduce(comm::buffer(std::span(numbers))).wait();
  if (std::ranges::count(numbers, ranks) != static_cast<std::ptrdiff_t>(numbers.size())) {
    throw std::runtime_error("an all-reduce has another sum than the number of ranks");
  }
}

void Job::check(const bimetal::membership::Change& change) const {
  const auto expected = fmt::format("cpu of {} ", options_.victim);
  if (change.lost.size() == 1 && change.lost.front().name.starts_with(expected) &&
      change.left.empty() && change.came.empty() && change.group.size() == options_.ranks - 1) {
    return;
  }
  throw std::runtime_error(fmt::format("the new epoch has {} ranks, {} lost and {} new ones",
                                       change.group.size(), change.lost.size(),
                                       change.came.size()));
}

void Job::be_rank(int rank) {
  const auto host = current_process()->host();
  auto store = bimetal::rendezvous::connect_store({store_->host(), kStorePort}, token_,
                                                  Deadline::after(kToStart));
  bimetal::membership::Membership members(member(host, rank));
  auto group = first_group(*store, host, rank);
  members.found(group);
  store.reset();
  arrive();
  add_up(group, options_.short_bytes, options_.ranks);
  arrive();
  add_up(group, options_.short_bytes, options_.ranks);
  arrive();
  for (int time = 0; time < long_ones(); ++time) {
    add_up(group, options_.long_bytes, options_.ranks);
    arrive();
  }
  std::optional<bimetal::Error> loss;
  while (!loss) {
    try {
      add_up(group, options_.short_bytes, options_.ranks);
    } catch (const bimetal::Error& error) {
      if (!bimetal::membership::follows_from_a_loss(error)) throw;
      loss = error;
    }
  }
  group.abort(fmt::format("rank {}: {}", rank, loss->what()));
  ++seen_loss_;
  const auto change = members.next(loss);
  group = change.group;
  check(change);
  arrive();
  add_up(group, options_.short_bytes, group.size());
  arrive();
}

void Job::arrive() {
  ++arrived_;
  wait_in(gate_, -1);
}

void Job::let_pass() {
  before_ = traffic();
  arrived_ = 0;
  wake_all(gate_);
}

void Job::fail_if_any_has() const {
  for (const auto* const rank : ranks_) {
    if (!rank->error.empty()) {
      throw std::runtime_error(fmt::format("rank {}: {}", rank->number - 1, rank->error));
    }
  }
}

void Job::pass(const std::string& phase, int ranks) {
  const auto begun = now();
  const bool came = run_until([&] {
    fail_if_any_has();
    return arrived_ == ranks;
  });
  if (!came) throw std::runtime_error(fmt::format("{}: {} of {} ranks", phase, arrived_, ranks));
  note(phase, begun);
}

std::vector<Traffic> Job::traffic() const {
  std::vector<Traffic> all;
  for (const auto* const rank : ranks_) all.push_back(rank->traffic);
  return all;
}

void Job::note(const std::string& phase, Nanoseconds begun) {
  Phase noted{.name = phase, .seconds = static_cast<double>(now() - begun) * 1e-9};
  const auto after = traffic();
  const auto count = static_cast<double>(after.size());
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    const auto sent = after[rank].messages_sent - before_[rank].messages_sent;
    const auto all = sent + after[rank].messages_received - before_[rank].messages_received;
    noted.messages += static_cast<double>(sent) / count;
    noted.bytes += static_cast<double>(after[rank].bytes_sent - before_[rank].bytes_sent) / count;
    noted.connections +=
        static_cast<double>(after[rank].connections - before_[rank].connections) / count;
    if (rank == 0) {
      noted.of_rank_0 = all;
    } else {
      noted.most_messages = std::max(noted.most_messages, all);
    }
  }
  phases_.push_back(noted);
  before_ = after;
}

std::vector<Phase> Job::run() {
  set_links(options_.links);
  store_ = &start([this] { serve_store(); });
  for (int rank = 0; rank < options_.ranks; ++rank) {
    ranks_.push_back(&start([this, rank] { be_rank(rank); }));
  }
  before_ = traffic();
  pass("start", options_.ranks);
  let_pass();
  pass("first all-reduce, short", options_.ranks);
  let_pass();
  pass("all-reduce, short", options_.ranks);
  for (int time = 0; time < long_ones(); ++time) {
    let_pass();
    pass(time == 0 ? "first all-reduce, long" : "all-reduce, long", options_.ranks);
  }

  const auto second = now() + 1'000'000'000;
  const auto begun = now();
  at(second, [] {});
  before_ = traffic();
  run_until([&] { return now() >= second; });
  note("a second of waiting", begun);

  let_pass();
  const auto soon = now() + 10'000'000;
  run_until([&] { return now() >= soon; });
  auto& victim = *ranks_[static_cast<std::size_t>(options_.victim)];
  before_ = traffic();
  const auto lost = now();
  options_.by_power ? switch_off(victim) : kill(victim);
  run_until([&] {
    fail_if_any_has();
    return seen_loss_ == options_.ranks - 1;
  });
  note("a loss, until all know", lost);
  pass("the new epoch", options_.ranks - 1);
  let_pass();
  pass("its first all-reduce", options_.ranks - 1);
  for (auto* const rank : ranks_) kill(*rank);
  kill(*store_);
  return phases_;
}

}  // namespace

std::vector<Phase> simulate_job(const JobOptions& options) {
  // It outlives this function: what the ranks' fibers have is never taken away.
  auto* const job = new Job(options);
  return job->run();
}

}  // namespace simulation
