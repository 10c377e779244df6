#pragma once
// How a job gets on, as those who watch it see it; and the JSON form of that, which `bimetal top`
// reads (docs/monitoring.md describes each field).
//
// The clock on the wall, for those who compare with other machines.
//
// A job's status in Prometheus' text format, version 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/).

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/progress/metrics.h"

namespace bimetal::monitor {

/// Rates and parts are those of the last seconds; an empty one is not known.
struct WorkerStatus {
  int rank = 0;
  bool gone = false;                    ///< lost, or it has left
  std::optional<double> silent_s = {};  ///< nothing has come from it for so long: stopped, asleep
  std::string host = {}, device = {};
  std::optional<std::string> stage = {};           ///< where the model is cut: its part of the mesh
  std::int64_t share = 0;                          ///< samples of the next global batch
  std::optional<double> memory_bytes = {};         ///< that its process has
  double samples_per_s_alone = 0;                  ///< of its own computation
  std::optional<double> samples_per_s = {};        ///< its part of the job's rate
  std::optional<double> wait_part = {};            ///< of the time, 0…1
  std::optional<double> bytes_per_s = {};          ///< sent
  std::optional<double> staleness = {};            ///< mean over its updates
  std::optional<std::int64_t> staleness_max = {};  ///< since the run's start
  std::optional<std::int64_t> samples = {};        ///< since the run's start, like all that follow
  std::optional<double> compute_s = {}, communicate_s = {}, wait_s = {};
  std::optional<std::uint64_t> bytes_sent = {};
};

struct Status {
  double started_at = 0;   ///< Unix time, seconds
  std::string phase = {};  ///< "loading data", "training"…
  std::int64_t epoch = 0, epochs = 0;
  std::int64_t step = 0, steps = 0;         ///< done, and planned in all; 0 before the first
  double elapsed_s = 0;                     ///< time of the training steps alone
  std::optional<double> since_step_s = {};  ///< how long ago the last step ended
  std::optional<double> loss = {}, samples_per_s = {}, efficiency = {}, seconds_left = {};
  std::optional<double> learning_rate = {}, loss_scale = {};
  std::string counts = "samples";              ///< what rates count: "images", "tokens"
  progress::Metrics test_metrics = {};         ///< of the last evaluation, in JSON "test_<name>"
  std::optional<double> test_loss = {};        ///< likewise
  progress::Metrics validation_metrics = {};   ///< the same of validation data
  std::optional<double> validation_loss = {};  ///< likewise
  std::optional<std::string> schedule = {};    ///< set if the model is cut, like the members
                                               ///< below
  std::optional<std::int64_t> micro_batches = {};
  // For an elastic job, since rank 0 became that.
  std::int64_t workers_lost = 0, workers_left = 0, workers_joined = 0;
  double change_s = 0;                    ///< that these changes have cost in all
  std::vector<std::string> notices = {};  ///< the last few
  std::vector<WorkerStatus> workers = {};
};

/// One line.
std::string to_json(const Status& status);

/// The inverse. Error(ProtocolMismatch) if `json` holds anything else.
Status parse_status(std::string_view json);

/// Seconds since 1970.
inline double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The content type that a server gives such a text.
inline constexpr const char* kPrometheusContentType = "text/plain; version=0.0.4; charset=utf-8";

/// Every metric that is known now, with its HELP and TYPE; docs/monitoring.md lists them.
std::string to_prometheus(const Status& status);

}  // namespace bimetal::monitor
