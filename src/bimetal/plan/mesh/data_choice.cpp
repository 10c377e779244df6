#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "bimetal/balance/shares.h"
#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"

namespace bimetal::plan {
namespace {

class DataChooser {
 public:
  DataChooser(const MeshProblem& on, const std::vector<int>& devices, const Keeping& keeping,
              bool may_idle)
      : on_(on), devices_(devices), keeping_(keeping), may_idle_(may_idle) {}

  std::optional<MeshChoice> choose() {
    deal();
    if (!may_idle_ && std::ranges::find(shares_, 0) != shares_.end()) return std::nullopt;
    MeshChoice choice;
    choice.scheme = devices_.size() == 1 ? Scheme::Alone : Scheme::Data;
    choice.keeping = keeping_;
    choice.stages = {{.devices = devices_, .samples = shares_, .pieces = {{0, on_.units()}}}};
    double pieces = 1, busy = 0;
    std::vector<double> needed, of_each;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const auto& fitting = fit(i);
      needed.push_back(fitting.needed);
      of_each.push_back(std::ceil(static_cast<double>(shares_[i]) / fitting.at_once));
      pieces = std::max(pieces, of_each.back());
    }
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      // From level 2 on ranks take part in each other's passes, and so have as many.
      const auto samples = static_cast<double>(shares_[i]);
      const double own = keeping_.level < 2 ? of_each[i] : std::min(pieces, samples);
      const auto pass = pass_of(i);
      const double moved = disk_seconds(facts(i), keeping_, kept_elements(i), 2 * own);
      const double seconds = own * pass.fixed + samples * pass.per_sample + moved;
      passes_s_ = std::max(passes_s_, seconds);
      choice.compute_s = std::max(choice.compute_s, seconds + update_seconds(i));
      busy += seconds + update_seconds(i);
    }
    choice.micro_batches = static_cast<int>(pieces);
    choice.take_peaks(on_.cluster, needed);
    if (keeping_.level >= 2) take_first_step(choice);
    communicate(pieces, choice);
    choice.bubble = 1 - busy / (choice.step_s * static_cast<double>(devices_.size()));
    return choice;
  }

 private:
  const MeshDevice& device(std::size_t i) const { return on_.cluster.device(devices_[i]); }
  const ModelFacts& facts(std::size_t i) const { return on_.facts_of(devices_[i]); }
  Linear pass_of(std::size_t i) const {
    return facts(i).pass_seconds(keeping_.recomputed_at_once > 0) * device(i).slower;
  }

  void deal() {
    std::vector<balance::Device> all;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const auto pass = pass_of(i);
      all.push_back({.cost = balance::CostModel(pass.fixed, std::max(1e-12, pass.per_sample))});
    }
    shares_ = balance::balanced_shares(all, on_.input.global_batch);
    shards_ = shards_by_memory(on_.cluster, devices_);
    copied_.assign(devices_.size(), 0.0);
    if (copies()) copied_ = copied_shards(shards_);
  }

  bool copies() const { return keeping_.level > 0 && keeping_.copies > 1 && devices_.size() > 1; }

  /// The gradients of each shard on their way to its copy, once they are summed: nothing hides
  /// them.
  double copying_seconds(double bytes) const {
    if (!copies()) return 0;
    std::vector<int> next(devices_.begin() + 1, devices_.end());
    next.push_back(devices_.front());
    std::vector<double> sent;
    for (const double shard : shards_) sent.push_back(shard * bytes);
    return on_.cluster.send_seconds(devices_, next, sent);
  }

  using FittingKey = std::tuple<std::size_t, double, std::int64_t, double, double>;
  struct Fitting {
    double at_once = 1, needed = 0;
  };

  /// The most samples at once that fit; 1 where even that does not. Alike devices are asked once.
  const Fitting& fit(std::size_t i) {
    const FittingKey key = {device(i).facts, device(i).memory_bytes, shares_[i], shards_[i],
                            copied_[i]};
    const auto [place, fresh] = fittings_.try_emplace(key);
    if (fresh) place->second = fitting_of(i);
    return place->second;
  }

  Fitting fitting_of(std::size_t i) const {
    const auto share = std::max<std::int64_t>(1, shares_[i]);
    Fitting fitting{.at_once = static_cast<double>(most_at_once(share))};
    while (true) {
      fitting.needed = needed_for(i, shares_[i], fitting.at_once);
      if (fitting.needed <= device(i).memory_bytes || fitting.at_once <= 1) return fitting;
      fitting.at_once = std::max(1.0, std::floor(fitting.at_once / 2));
    }
  }

  std::int64_t most_at_once(std::int64_t samples) const {
    return on_.input.micro_batch > 0 ? std::min(on_.input.micro_batch, samples) : samples;
  }

  /// The memory for so many samples, in equal micro-batches of at most `limit`.
  double needed_for(std::size_t i, std::int64_t count, double limit) const {
    const auto samples = static_cast<double>(count);
    const double pieces = std::max(1.0, std::ceil(samples / limit));
    const RankLoad load{.ranks = static_cast<int>(devices_.size()),
                        .shard = shards_[i],
                        .copied = copied_[i],
                        .samples = samples,
                        .at_once = std::max(1.0, std::ceil(samples / pieces)),
                        .host_is_device = true,
                        .bucket_bytes = on_.input.bucket_mb * double(1 << 20),
                        .evaluates = on_.input.evaluates};
    return memory_use(facts(i), keeping_, load, 0).model();
  }

  /// From level 2 on no steps are measured before training, so that shares are equal at first, if
  /// there is room for that.
  void take_first_step(MeshChoice& choice) {
    const auto equal = on_.input.global_batch / static_cast<std::int64_t>(devices_.size());
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const double first = needed_for(i, equal, static_cast<double>(most_at_once(equal)));
      if (first > device(i).memory_bytes) continue;
      auto& peak = choice.peak_bytes[i];
      peak = std::max(peak, first);
      const double free = device(i).memory_bytes - peak;
      if (device(i).keeps_freed) choice.kept_bytes[i] = kept_beside(peak, free);
    }
  }

  double kept_elements(std::size_t i) const {
    return (keeping_.level > 0 ? shards_[i] : 1) * static_cast<double>(facts(i).elements());
  }

  double update_seconds(std::size_t i) const {
    return kept_elements(i) * facts(i).update_s * device(i).slower;
  }

  /// The computing time that hides communication. Sending takes none of it, unless CPUs of one host
  /// pass data on in memory: their own cores do that.
  double hiding() const {
    const bool by_cores = std::ranges::any_of(devices_, [&](int d) {
      const auto& device = on_.cluster.device(d);
      return device.is_host && std::ranges::all_of(devices_, [&](int other) {
               return on_.cluster.same_host(d, other);
             });
    });
    return by_cores ? 0 : kHidden;
  }

  // An all-reduce is a reduction into shards and a gather: levels 2 and 3 do the one for each
  // micro-batch, level 3 two gathers of each as well. In shards parameters are gathered in the type
  // that they come in. With unequal shards who has the least waits for the most.
  void communicate(double pieces, MeshChoice& choice) const {
    const auto& facts = on_.input.facts.front();
    const double bytes = facts.parameter_bytes();
    const double once = on_.cluster.all_reduce_seconds(devices_, bytes);
    const auto count = static_cast<double>(devices_.size());
    const double least = *std::ranges::min_element(shards_);
    const double uneven = count > 1 && keeping_.level > 0 ? (1 - least) / (1 - 1 / count) : 1;
    const double gathered =
        on_.cluster.all_reduce_seconds(devices_, gathered_bytes(facts, keeping_));
    const double sums = keeping_.level < 2 ? 1 : pieces;
    const double gathers = keeping_.level < 3 ? 1 : 2 * pieces;
    choice.sent_s = (sums * once + gathers * gathered) / 2 * uneven;
    const double bucket = std::min(bytes, on_.input.bucket_mb * double(1 << 20));
    const double last = on_.cluster.all_reduce_seconds(devices_, bucket);
    const double copied = copying_seconds(bytes);
    const double exposed = copied + left_to_wait_for(choice.sent_s, last, hiding() * passes_s_);
    choice.sent_s += copied;
    choice.step_s = choice.compute_s + exposed;
    choice.waiting_s = exposed;
  }

  const MeshProblem on_;
  const std::vector<int>& devices_;
  const Keeping& keeping_;
  const bool may_idle_;
  balance::Shares shares_;
  double passes_s_ = 0;                  ///< of the slowest: what sending may hide behind
  std::vector<double> shards_, copied_;  ///< of each rank, and of its copy of another's
  std::map<FittingKey, Fitting> fittings_;
};

}  // namespace

std::optional<MeshChoice> choose_data(const MeshProblem& on, const std::vector<int>& devices,
                                      const Keeping& keeping, bool may_idle) {
  if (static_cast<std::int64_t>(devices.size()) > on.input.global_batch) return std::nullopt;
  return DataChooser(on, devices, keeping, may_idle).choose();
}

std::vector<double> shards_by_memory(const Cluster& cluster, const std::vector<int>& devices) {
  double memory = 0;
  for (const int device : devices) memory += cluster.device(device).memory_bytes;
  std::vector<double> shards(devices.size(), 1.0 / static_cast<double>(devices.size()));
  for (std::size_t i = 0; i < devices.size() && std::isfinite(memory); ++i) {
    shards[i] = cluster.device(devices[i]).memory_bytes / memory;
  }
  return shards;
}

void take_whole_step(ModelFacts& facts, double step_s, double samples, double at_once) {
  const auto pass = facts.pass_seconds();
  const double passes = std::ceil(samples / at_once);
  const double by_units = passes * pass.fixed + samples * pass.per_sample;
  if (!(by_units > 0 && step_s > 0)) return;
  for (auto& unit : facts.units) {
    for (auto* const seconds : {&unit.forward_s, &unit.backward_s}) {
      *seconds = *seconds * (step_s / by_units);
    }
  }
}

double seconds_per_sample(const MeshProblem& on, int device, double at_once) {
  const auto pass = on.facts_of(device).pass_seconds() * on.cluster.device(device).slower;
  return pass.per_sample + pass.fixed / at_once;
}

std::vector<int> fastest_first(const MeshProblem& on) {
  std::vector<int> devices(static_cast<std::size_t>(on.cluster.size()));
  std::iota(devices.begin(), devices.end(), 0);
  std::ranges::stable_sort(devices, {}, [&](int d) { return seconds_per_sample(on, d, 1); });
  return devices;
}

}  // namespace bimetal::plan
