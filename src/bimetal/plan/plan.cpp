#include "bimetal/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "bimetal/base/error.h"

namespace bimetal::plan {
namespace {

constexpr std::int64_t kLargestBatch = 1 << 20;
constexpr double kFastestLink = 1e6;  // times the present one: as good as no transfer time at all

void check(const PlanInput& input) {
  const auto fail = [](const char* flaw) { throw Error(ErrorCode::InvalidArgument, flaw); };
  if (input.workers.empty()) fail("a plan needs at least one worker");
  if (input.global_batch < 1) fail("a plan needs a global batch of at least 1");
  if (input.workers.size() > 1 && !(input.link.bytes_per_s > 0 && input.link.latency_s >= 0))
    fail("a plan for several workers needs the speed of their link");
  if (input.servers < 0 || input.copies < 1)
    fail("a plan needs 0 or more servers, and a copy of each");
}

std::vector<balance::Device> devices_of(const PlanInput& input, const std::vector<int>& ranks) {
  std::vector<balance::Device> devices;
  for (const int rank : ranks) {
    devices.push_back({.cost = input.workers[static_cast<std::size_t>(rank)].cost});
  }
  return devices;
}

// Part of the bytes passes a worker's link, and part of all workers' bytes a server's: the slower
// decides.
double transfer_seconds(const PlanInput& input, double bytes, int copies, int ranks, int servers) {
  const double busiest = std::max<double>(copies, static_cast<double>(ranks) / servers);
  return input.link.latency_s + busiest * bytes / input.link.bytes_per_s;
}

void communicate(const PlanInput& input, Prediction& step) {
  const auto ranks = static_cast<int>(step.ranks.size());
  const auto bytes = static_cast<double>(input.gradient_bytes());
  if (step.way == Way::Servers) {
    step.communicate_s = exposed_by_servers(step.compute_s, input, ranks, input.servers);
    step.sent_bytes = bytes * input.copies;
    step.server_bytes = bytes * ranks / input.servers;
  } else {
    step.communicate_s = exposed_seconds(step.compute_s, input, ranks);
    step.sent_bytes = 2 * bytes * (ranks - 1) / ranks;
  }
}

Prediction predict(const PlanInput& input, Way way, const std::vector<int>& ranks) {
  const auto devices = devices_of(input, ranks);
  const auto count = static_cast<int>(ranks.size());
  Prediction result;
  result.way = way;
  result.ranks = ranks;
  result.shares = way == Way::Balanced || way == Way::Servers
                      ? balance::balanced_shares(devices, input.global_batch)
                      : balance::equal_shares(count, input.global_batch);
  result.compute_s = balance::finish_seconds(devices, result.shares);
  communicate(input, result);
  result.step_s = result.compute_s + result.communicate_s;
  result.samples_per_s = static_cast<double>(input.global_batch) / result.step_s;
  return result;
}

// Ranks whose cost is known, the fastest at this batch first.
std::vector<int> usable_ranks(const PlanInput& input) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < input.workers.size(); ++r) {
    if (input.workers[r].cost.known()) ranks.push_back(static_cast<int>(r));
  }
  std::ranges::stable_sort(ranks, {}, [&](int rank) {
    return input.workers[static_cast<std::size_t>(rank)].cost.seconds(
        static_cast<double>(input.global_batch));
  });
  return ranks;
}

bool clearly_faster(const Prediction& a, const Prediction& b) {
  return a.step_s < b.step_s * (1 - kWorthwhile);
}

bool sharing_pays(const PlanInput& input, const std::vector<int>& fastest_first) {
  auto all = fastest_first;
  std::ranges::sort(all);
  return clearly_faster(predict(input, Way::Balanced, all),
                        predict(input, Way::Alone, {usable_ranks(input).front()}));
}

// The more samples a step has, the less its communication matters: the answer turns once.
std::optional<std::int64_t> find_crossover_batch(PlanInput input, const std::vector<int>& ranks) {
  const auto pays = [&](std::int64_t batch) {
    input.global_batch = batch;
    return sharing_pays(input, ranks);
  };
  std::int64_t high = 1;
  while (!pays(high)) {
    if (high >= kLargestBatch) return std::nullopt;
    high *= 2;
  }
  std::int64_t low = high / 2;  // does not pay, or 0
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (pays(middle) ? high : low) = middle;
  }
  return high;
}

std::optional<double> find_crossover_link(PlanInput input, const std::vector<int>& ranks) {
  const double present = input.link.bytes_per_s;
  const auto pays = [&](double factor) {
    input.link.bytes_per_s = present * factor;
    return sharing_pays(input, ranks);
  };
  if (!pays(kFastestLink)) return std::nullopt;
  double low = 1, high = kFastestLink;
  while (high / low > 1.01) {
    const double middle = std::sqrt(low * high);
    (pays(middle) ? high : low) = middle;
  }
  return present * high;
}

// More servers than workers gain nothing: each worker's own link is then the limit.
std::optional<int> find_crossover_servers(PlanInput input, std::vector<int> ranks) {
  if (input.servers == 0) return std::nullopt;
  std::ranges::sort(ranks);
  const Prediction reduced = predict(input, Way::Balanced, ranks);
  const auto most = static_cast<int>(ranks.size()) * input.copies;
  for (input.servers = 1; input.servers <= most; ++input.servers) {
    if (clearly_faster(predict(input, Way::Servers, ranks), reduced)) return input.servers;
  }
  return std::nullopt;
}

// Ranks in the order of their numbers, so that shares read as they do elsewhere.
std::vector<int> first_sorted(const std::vector<int>& ranks, std::size_t count) {
  std::vector<int> result(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(count));
  std::ranges::sort(result);
  return result;
}

void add_predictions(const PlanInput& input, const std::vector<int>& fastest_first, Plan& plan) {
  const auto all = first_sorted(fastest_first, fastest_first.size());
  for (const int rank : all) plan.predictions.push_back(predict(input, Way::Alone, {rank}));
  if (all.size() == 1) return;
  plan.predictions.push_back(predict(input, Way::Equal, all));
  plan.predictions.push_back(predict(input, Way::Balanced, all));
  for (std::size_t count = 2; count < all.size(); ++count) {
    plan.predictions.push_back(predict(input, Way::Balanced, first_sorted(fastest_first, count)));
  }
  if (input.servers > 0) plan.predictions.push_back(predict(input, Way::Servers, all));
}

// One worker alone needs no network, a balanced split of all leaves nobody out, and reducing needs
// no servers: each later prediction must be clearly better to be taken.
std::size_t choose(const std::vector<Prediction>& predictions) {
  const auto fastest = std::ranges::min_element(predictions, {}, [](const Prediction& p) {
    return p.way == Way::Alone ? p.step_s : std::numeric_limits<double>::infinity();
  });
  auto best = static_cast<std::size_t>(fastest - predictions.begin());
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const bool balanced = predictions[i].way == Way::Balanced || predictions[i].way == Way::Servers;
    if (balanced && clearly_faster(predictions[i], predictions[best])) best = i;
  }
  return best;
}

}  // namespace

double left_to_wait_for(double all_s, double last_s, double hiding_s) {
  return last_s + std::max(0.0, all_s - last_s - hiding_s);
}

double ring_seconds(double bytes, double ranks, const LinkSpeed& link) {
  if (ranks < 2) return 0;
  return 2 * (ranks - 1) * (link.latency_s + bytes / ranks / link.bytes_per_s);
}

std::uint64_t PlanInput::gradient_bytes() const {
  return std::accumulate(bucket_bytes.begin(), bucket_bytes.end(), std::uint64_t{0});
}

double exposed_seconds(double compute_s, const PlanInput& input, int ranks) {
  if (ranks < 2 || input.bucket_bytes.empty()) return 0;
  double all = 0;
  for (const std::uint64_t bytes : input.bucket_bytes) {
    all += ring_seconds(static_cast<double>(bytes), ranks, input.link);
  }
  const auto last_bytes = static_cast<double>(input.bucket_bytes.back());
  const double last = ring_seconds(last_bytes, ranks, input.link);
  return left_to_wait_for(all, last, kHidden * compute_s);
}

double exposed_by_servers(double compute_s, const PlanInput& input, int ranks, int servers) {
  const auto bytes = static_cast<double>(input.gradient_bytes());
  if (ranks < 1 || servers < 1 || bytes == 0) return 0;
  const double pull = transfer_seconds(input, bytes, 1, ranks, servers);
  const double push = transfer_seconds(input, bytes, input.copies, ranks, servers);
  const double last = push * static_cast<double>(input.bucket_bytes.back()) / bytes;
  return pull + left_to_wait_for(push, last, kHidden * compute_s);
}

Plan make_plan(const PlanInput& input) {
  check(input);
  const auto ranks = usable_ranks(input);
  if (ranks.empty()) {
    throw Error(ErrorCode::OutOfMemory,
                "not even the smallest batch of this model fits into the memory of any worker");
  }
  Plan plan;
  for (std::size_t r = 0; r < input.workers.size(); ++r) {
    if (!input.workers[r].cost.known()) plan.unusable.push_back(static_cast<int>(r));
  }
  add_predictions(input, ranks, plan);
  plan.best = choose(plan.predictions);
  if (ranks.size() == 1) return plan;
  plan.crossover_batch = find_crossover_batch(input, ranks);
  plan.crossover_servers = find_crossover_servers(input, ranks);
  if (plan.chosen().way == Way::Alone) {
    plan.crossover_bytes_per_s = find_crossover_link(input, ranks);
  }
  return plan;
}

}  // namespace bimetal::plan
