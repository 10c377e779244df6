#pragma once
// A run's history since its start, for pictures: series that are thinned, events, and where the
// time of a step went. Bounded in size, however long the run is.

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/monitor/run_record.h"
#include "bimetal/progress/journal.h"
#include "bimetal/progress/metrics.h"
#include "bimetal/progress/observer.h"

namespace bimetal::monitor {

/// Something that happened, for a list and as a mark on pictures.
struct Event {
  double at = 0;  ///< Unix time, seconds
  std::int64_t step = 0;
  std::string kind = {};  ///< notice, checkpoint, evaluation, shares, lost, left, joined, phase
  std::string text = {};
  std::string who = {};  ///< of a rank's log: which
};

struct Evaluated : EvaluatedAt {
  double at = 0;  ///< Unix time, seconds
};

/// The forecast for each worker when these workers began, as far as they had been measured.
struct PlanOfShares {
  std::vector<std::int64_t> shares = {};
  std::vector<double> alone = {};
};

/// The observer's calls come from one thread; functions that make text may be called from any
/// other.
class History final : public progress::Observer {
 public:
  static constexpr std::size_t kMostEvents = 1000;     ///< older ones are dropped
  static constexpr std::size_t kMostLines = 1000;      ///< of the ranks' logs, likewise
  static constexpr std::size_t kMostBytes = 2000;      ///< of an event's text
  static constexpr std::size_t kMostWorkers = 64;      ///< with more, no shares are kept
  static constexpr std::size_t kMostSpans = 8000;      ///< of a profile; of later ranks none
  static constexpr double kLeastMoved = 0.03;          ///< part of a batch that is an event
  static constexpr double kBetweenSharesEvents_s = 5;  ///< of training

  void on_phase(const std::string& what) override;
  void on_step(const progress::Progress& progress) override;
  void on_evaluated(std::int64_t epoch, const progress::Evaluation& evaluation) override;
  void on_checkpoint(const std::string& path, std::int64_t step) override;
  void on_rescue(const progress::Rescue& rescue) override;
  void on_profile(const progress::StepTimes& times) override;
  void on_notice(const std::string& text) override;
  void on_sample(const progress::Sample& sample) override;
  /// -1 - S: of parameter server S.
  void on_rank_lines(int worker, const std::string& host,
                     const std::vector<progress::RankLine>& lines) override;
  void on_members(const progress::MembersChange& change) override;

  /// How much of what happened somebody knows.
  struct Known {
    std::int64_t events = 0, profiles = 0, evaluations = 0, lines = 0, samples = 0;
  };

  /// All of it, as one JSON object in one line.
  std::string to_json(Known& known) const;
  /// The news since then, likewise; empty: none.
  std::string news(Known& known) const;

  /// For the run's record.
  std::vector<CurvePoint> curve() const;
  std::vector<EvaluatedAt> evaluations() const;

 private:
  struct Point {
    std::int64_t step = 0;
    double at = 0, elapsed_s = 0;
    std::int64_t samples = 0;  ///< trained on until then
    double loss = 0, samples_per_s = 0, efficiency = 0;
    double of_fastest = 0;  ///< the rate ÷ that of the worker that is fastest alone
    std::optional<double> learning_rate = {}, loss_scale = {};
    std::vector<std::int32_t> shares = {};
  };

  void add(std::string kind, std::string text);
  bool told(const std::string& notice) const;
  void note_shares(const progress::Progress& progress);

  mutable std::mutex mutex_;
  progress::Thinned<Point> points_;
  progress::Thinned<Evaluated> evaluations_;
  std::deque<Event> events_;
  std::int64_t events_told_ = 0;  ///< those that were dropped included
  std::deque<Event> lines_;       ///< of the ranks' logs: no marks on pictures
  std::int64_t lines_told_ = 0;
  std::optional<PlanOfShares> plan_;
  std::optional<progress::StepTimes> profile_;
  std::optional<progress::Sample> sample_;
  std::int64_t profiles_told_ = 0, evaluations_told_ = 0, samples_told_ = 0;
  std::int64_t step_ = 0, samples_ = 0;
  double elapsed_s_ = 0, shares_noted_s_ = 0;
  std::vector<std::int64_t> shares_;  ///< as the last event of them had it
  std::vector<double> alone_;         ///< likewise
};

}  // namespace bimetal::monitor
