#include "bimetal/monitor/history.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "bimetal/monitor/run_record.h"
#include "bimetal/monitor/status.h"
#include "bimetal/progress/rank_log.h"
#include "bimetal/progress/text.h"

namespace bimetal::monitor {
namespace {

using Json = nlohmann::ordered_json;

/// Names the worker whose rate alone has changed most since `before`. Nothing if none has changed
/// by a tenth, as when the balancer has just learnt more.
std::string reason_of(const std::vector<double>& before, const std::vector<double>& now) {
  constexpr double kMuch = 0.1;
  double most = kMuch;
  std::string reason;
  for (std::size_t rank = 0; rank < std::min(before.size(), now.size()); ++rank) {
    if (!(before[rank] > 0) || !(now[rank] > 0)) continue;
    const double change = now[rank] / before[rank] - 1;
    if (std::abs(change) < most) continue;
    most = std::abs(change);
    reason = fmt::format(": rank {} computes {:.0f} % {} than before", rank, 100 * std::abs(change),
                         change > 0 ? "faster" : "slower");
  }
  return reason;
}

Json json_of(const Event& event) {
  Json json = {{"at", event.at}, {"step", event.step}, {"kind", event.kind}, {"text", event.text}};
  if (!event.who.empty()) json["who"] = event.who;
  return json;
}

/// By rank: for each span its phase, micro-batch, begin and end in microseconds.
Json json_of(const std::vector<std::vector<progress::StepSpan>>& spans) {
  const auto microseconds = [](double seconds) { return std::llround(1e6 * seconds); };
  auto ranks = Json::array();
  std::size_t all = 0;
  for (const auto& rank : spans) {
    auto list = Json::array();
    all += rank.size();
    for (const auto& span : rank) {
      if (all > History::kMostSpans) break;
      list.push_back(
          {span.phase, span.micro_batch, microseconds(span.begin_s), microseconds(span.end_s)});
    }
    ranks.push_back(std::move(list));
  }
  return ranks;
}

Json json_of(const progress::StepTimes& times) {
  return {{"first_step", times.first_step}, {"last_step", times.last_step},
          {"phases", times.phases},         {"seconds", times.seconds},
          {"spans", json_of(times.spans)},  {"latency_s", times.latency_s}};
}

Json json_of(const std::vector<Evaluated>& evaluations) {
  auto list = Json::array();
  for (const auto& one : evaluations) {
    auto json = json_of(static_cast<const EvaluatedAt&>(one));
    json["at"] = one.at;
    list.push_back(std::move(json));
  }
  return list;
}

Json json_of(const std::optional<PlanOfShares>& plan) {
  return plan ? Json{{"shares", plan->shares}, {"alone", plan->alone}} : Json();
}

Json json_of(const std::optional<progress::Sample>& sample) {
  return sample ? Json{{"text", sample->text}, {"shape", sample->shape}, {"pixels", sample->pixels}}
                : Json();
}

/// From the first event on that is not known.
template <typename Events>
Json events_since(const Events& events, std::int64_t told, std::int64_t known) {
  auto list = Json::array();
  const auto first = std::max<std::int64_t>(0, std::ssize(events) - (told - known));
  for (auto i = first; i < std::ssize(events); ++i) {
    list.push_back(json_of(events[static_cast<std::size_t>(i)]));
  }
  return list;
}

}  // namespace

void History::add(std::string kind, std::string text) {
  if (text.size() > kMostBytes) text = text.substr(0, kMostBytes) + "…";
  events_.push_back({unix_time(), step_, std::move(kind), std::move(text)});
  if (events_.size() > kMostEvents) events_.pop_front();
  ++events_told_;
}

void History::on_phase(const std::string& what) {
  const std::scoped_lock lock(mutex_);
  add("phase", what);
}

void History::on_step(const progress::Progress& progress) {
  const std::scoped_lock lock(mutex_);
  step_ = progress.step;
  elapsed_s_ = progress.elapsed_s;
  samples_ = 0;
  for (const auto& worker : progress.workers) samples_ += worker.samples;
  const auto& alone = progress.rank_samples_per_s;
  if (!plan_) plan_.emplace(progress.shares, alone);
  const double fastest = alone.empty() ? 0 : *std::ranges::max_element(alone);
  Point point{.step = progress.step,
              .at = unix_time(),
              .elapsed_s = progress.elapsed_s,
              .samples = samples_,
              .loss = progress.loss,
              .samples_per_s = progress.samples_per_s,
              .efficiency = progress.efficiency,
              .of_fastest = fastest > 0 ? progress.samples_per_s / fastest : std::nan(""),
              .learning_rate = progress.learning_rate,
              .loss_scale = progress.loss_scale};
  if (progress.shares.size() <= kMostWorkers) {
    for (const auto share : progress.shares)
      point.shares.push_back(static_cast<std::int32_t>(share));
  }
  points_.add(std::move(point));
  note_shares(progress);
}

/// Small changes come all the time, and are none that people look for.
void History::note_shares(const progress::Progress& progress) {
  const auto keep = [&] {
    shares_ = progress.shares;
    alone_ = progress.rank_samples_per_s;
    shares_noted_s_ = progress.elapsed_s;
  };
  // Other workers than before: an event of its own has told.
  if (shares_.size() != progress.shares.size()) return keep();
  std::int64_t moved = 0;
  for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
    moved += std::max<std::int64_t>(0, progress.shares[rank] - shares_[rank]);
  }
  const auto all = std::reduce(progress.shares.begin(), progress.shares.end());
  if (static_cast<double>(moved) < kLeastMoved * static_cast<double>(all)) return;
  if (progress.elapsed_s - shares_noted_s_ < kBetweenSharesEvents_s) return;
  const auto few = [](const std::vector<std::int64_t>& shares) {
    constexpr std::size_t kFew = 8;
    const auto some = std::span(shares).first(std::min(kFew, shares.size()));
    return fmt::format("{}{}", fmt::join(some, " : "), shares.size() > kFew ? " …" : "");
  };
  add("shares", fmt::format("shares {} → {}{}", few(shares_), few(progress.shares),
                            reason_of(alone_, progress.rank_samples_per_s)));
  keep();
}

void History::on_evaluated(std::int64_t epoch, const progress::Evaluation& evaluation) {
  const std::scoped_lock lock(mutex_);
  evaluations_.add({{step_, elapsed_s_, samples_, evaluation}, unix_time()});
  ++evaluations_told_;
  auto text = fmt::format("epoch {}: ", epoch);
  for (const auto& metric : evaluation.metrics) {
    text += fmt::format("{} {}, ", progress::label_of(metric, evaluation.data),
                        progress::text_of(metric));
  }
  add("evaluation", text + fmt::format("{} loss {:.4f}", evaluation.data, evaluation.loss));
}

void History::on_checkpoint(const std::string& path, std::int64_t step) {
  const std::scoped_lock lock(mutex_);
  add("checkpoint", fmt::format("step {} saved in {}", step, path));
}

void History::on_rescue(const progress::Rescue& rescue) {
  const std::scoped_lock lock(mutex_);
  using State = progress::Rescue::State;
  if (rescue.state == State::Saving) return;
  add(rescue.state == State::Saved ? "checkpoint" : "notice",
      rescue.state == State::Saved
          ? fmt::format("step {} saved in {}, as rank {} was lost", rescue.step, rescue.path,
                        rescue.lost)
          : fmt::format("what the lost rank had could not be saved: {}", rescue.cause));
}

void History::on_profile(const progress::StepTimes& times) {
  const std::scoped_lock lock(mutex_);
  profile_ = times;
  ++profiles_told_;
  add("phase", fmt::format("profiled steps {} to {}", times.first_step, times.last_step));
}

void History::on_notice(const std::string& text) {
  const std::scoped_lock lock(mutex_);
  add("notice", text);
}

/// A notice of all ranks is there once, in rank 0's words.
bool History::told(const std::string& notice) const {
  constexpr std::ptrdiff_t kLately = 50;
  const auto lately = events_.end() - std::min(kLately, std::ssize(events_));
  return std::any_of(lately, events_.end(),
                     [&](const Event& event) { return event.text == notice; });
}

void History::on_sample(const progress::Sample& sample) {
  const std::scoped_lock lock(mutex_);
  sample_ = sample;
  ++samples_told_;
  add("sample", sample.text);
}

void History::on_rank_lines(int worker, const std::string& host,
                            const std::vector<progress::RankLine>& lines) {
  const std::scoped_lock lock(mutex_);
  const bool server = worker < 0;
  const auto who = fmt::format("{} {}{}{}", server ? "server" : "rank",
                               server ? -1 - worker : worker, host.empty() ? "" : " on ", host);
  for (const auto& line : lines) {
    if (line.kind == "notice" && told(line.text)) continue;
    lines_.push_back({line.at, step_, line.kind, line.text, who});
    if (lines_.size() > kMostLines) lines_.pop_front();
    ++lines_told_;
  }
}

void History::on_members(const progress::MembersChange& change) {
  const std::scoped_lock lock(mutex_);
  const auto each = [this](const char* kind, const std::vector<std::string>& who,
                           const std::string& why) {
    for (const auto& one : who) add(kind, fmt::format("{}: {}{}", kind, one, why));
  };
  each("lost", change.lost, change.cause.empty() ? "" : fmt::format(" ({})", change.cause));
  each("left", change.left, "");
  each("joined", change.came, "");
  add("notice", progress::lines_of(change).back());
  plan_.reset();  // the next step's shares are the plan for these workers
}

std::string History::to_json(Known& known) const {
  const std::scoped_lock lock(mutex_);
  Json json;
  auto& series = json["points"];
  const auto column = [&](const char* name, const auto& value) {
    auto& list = series[name] = Json::array();
    for (const auto& point : points_.points()) list.push_back(value(point));
  };
  const auto known_or_null = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json();
  };
  column("step", [](const Point& point) { return point.step; });
  column("at", [](const Point& point) { return point.at; });
  column("elapsed_s", [](const Point& point) { return point.elapsed_s; });
  column("loss", [](const Point& point) { return point.loss; });
  column("samples_per_s", [](const Point& point) { return point.samples_per_s; });
  column("efficiency", [](const Point& point) { return point.efficiency; });
  column("of_fastest", [](const Point& point) { return point.of_fastest; });
  column("learning_rate", [&](const Point& point) { return known_or_null(point.learning_rate); });
  column("loss_scale", [&](const Point& point) { return known_or_null(point.loss_scale); });
  column("shares", [](const Point& point) { return point.shares; });
  json["evaluations"] = json_of(evaluations_.points());
  json["plan"] = json_of(plan_);
  json["profile"] = profile_ ? json_of(*profile_) : Json();
  json["sample"] = json_of(sample_);
  json["events"] = events_since(events_, events_told_, 0);
  json["lines"] = events_since(lines_, lines_told_, 0);
  known = {events_told_, profiles_told_, evaluations_told_, lines_told_, samples_told_};
  return text_of(json);
}

std::string History::news(Known& known) const {
  const std::scoped_lock lock(mutex_);
  // Any other news is an event, too.
  if (known.events == events_told_ && known.lines == lines_told_) return "";
  Json json = {{"events", events_since(events_, events_told_, known.events)},
               {"lines", events_since(lines_, lines_told_, known.lines)}};
  json["plan"] = json_of(plan_);
  if (known.profiles != profiles_told_) json["profile"] = json_of(*profile_);
  if (known.samples != samples_told_) json["sample"] = json_of(sample_);
  if (known.evaluations != evaluations_told_) {
    json["evaluations"] = json_of(evaluations_.points());
  }
  known = {events_told_, profiles_told_, evaluations_told_, lines_told_, samples_told_};
  return text_of(json);
}

std::vector<CurvePoint> History::curve() const {
  const std::scoped_lock lock(mutex_);
  std::vector<CurvePoint> curve;
  for (const auto& point : points_.points()) {
    curve.push_back({point.step, point.elapsed_s, point.samples, point.loss});
  }
  return curve;
}

std::vector<EvaluatedAt> History::evaluations() const {
  const std::scoped_lock lock(mutex_);
  return {evaluations_.points().begin(), evaluations_.points().end()};
}

}  // namespace bimetal::monitor
