#pragma once
// The record of a training in its folder of checkpoints, training.json, for programs that compare
// or list trainings: docs/monitoring.md#runs.
//
// Parts of a run's record that the page has, too.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/progress/metrics.h"

namespace bimetal::monitor {

inline constexpr const char* kRunFile = "training.json";

/// How its loss went. Counted from the training's first start, whatever it was resumed from.
struct CurvePoint {
  std::int64_t step = 0;
  double elapsed_s = 0;      ///< of training steps alone
  std::int64_t samples = 0;  ///< trained on
  double loss = 0;           ///< mean over the steps since the point before
};

struct EvaluatedAt {
  std::int64_t step = 0;
  double elapsed_s = 0;
  std::int64_t samples = 0;
  progress::Evaluation evaluation = {};
};

struct RunRecord {
  static constexpr std::size_t kMostPoints = 400;  ///< of a curve

  /// "running"; "done", "stopped" (by people) or "failed"; in lists also "lost", where nothing has
  /// been heard of a running one, and "unknown": a folder of checkpoints without a record.
  std::string state = "unknown";
  std::filesystem::path folder = {};      ///< in lists
  double started_at = 0, updated_at = 0;  ///< Unix time, seconds
  std::string host = {};                  ///< of rank 0
  std::string address = {};               ///< of its monitor, while it runs; empty: none
  std::vector<std::string> workers = {};  ///< "cpu:threads=1 on pc"
  std::string counts = "samples";         ///< what the rate counts: "images", "tokens"
  std::int64_t epoch = 0, epochs = 0, step = 0, steps = 0;
  double elapsed_s = 0;
  std::int64_t samples = 0;
  std::optional<double> loss = {};  ///< of the last step; in the end the mean of the last epoch
  std::optional<double> samples_per_s = {}, efficiency = {};
  std::string job = {};  ///< the job file, every key with its value
  std::vector<CurvePoint> curve = {};
  std::vector<EvaluatedAt> evaluations = {};
};

/// One object. `folder` is not in it, but for lists, which have its name.
std::string to_json(const RunRecord& record);
std::string to_json(const std::vector<RunRecord>& records);

/// Nothing for text that is none.
std::optional<RunRecord> parse_run_record(std::string_view json);

/// That of a folder of checkpoints; nothing where there is none that can be read.
std::optional<RunRecord> read_run_record(const std::filesystem::path& folder);

/// The folders in `parent` with a record or with checkpoints, the last changed first, and at most
/// `most` of them. Empty if there is no such folder.
std::vector<RunRecord> list_runs(const std::filesystem::path& parent, std::size_t most);

/// Not more than kMostPoints, each the mean of those that it stands for.
std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& curve);

nlohmann::ordered_json json_of(const EvaluatedAt& at);

/// In one line; a name in no known encoding is no reason to lose it.
std::string text_of(const nlohmann::ordered_json& json);

}  // namespace bimetal::monitor
