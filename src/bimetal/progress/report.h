#pragma once
// The figures of a finished run, and their JSON form (docs/report.md describes each field).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/progress/members_change.h"
#include "bimetal/progress/metrics.h"

namespace bimetal::progress {

/// Bytes of a rank's process at its peak: as planned before training, by kind, and as measured.
struct MemoryReport {
  double peak = 0;         ///< measured; 0: not known
  double planned = 0;      ///< the sum of the kinds below; 0: there was no plan
  double program = 0;      ///< planned, without the kinds below
  double parameters = 0;   ///< planned
  double gradients = 0;    ///< planned
  double optimizer = 0;    ///< planned: the optimizer's state
  double activations = 0;  ///< planned
  double buffers = 0;      ///< planned: of exchanges
  double kept = 0;         ///< of freed tensors, beside the peak
};

/// The traffic to a disk and back.
struct DiskReport {
  double kept_bytes = 0;                  ///< the file's
  double read_bytes = 0, read_s = 0;      ///< from it
  double written_bytes = 0, write_s = 0;  ///< 0 s: not known
  double wait_s = 0;                      ///< in which nothing else was done
};

/// For a worker that keeps states or parameters on a disk (docs/zero.md).
struct OffloadReport {
  std::string folder = {};                                 ///< where it lies
  std::optional<DiskReport> states = {}, parameters = {};  ///< none: they are not there
  std::optional<DiskReport> copy = {};  ///< a plain file's, at the start; none: no room for it
};

/// The report on one worker.
struct WorkerReport {
  int rank = 0;                                         ///< from 0
  std::string host = {};                                ///< its machine
  std::string device = {};                              ///< the device that it computed on
  std::string precision = {};                           ///< that it computed in; empty: not known
  double share = 0;                                     ///< of the samples trained on, 0…1
  std::int64_t samples = 0;                             ///< trained on
  double compute_s = 0, communicate_s = 0, wait_s = 0;  ///< of all steps
  double samples_per_s_alone = 0;                       ///< it would do alone; 0: not known
  MemoryReport memory = {};                             ///< of its process
  std::optional<OffloadReport> offload = {};            ///< where something lies on a disk
};

/// A run by way of parameter servers (docs/parameter_server.md).
struct ServerWorkerReport {
  int rank = 0;                    ///< of the worker
  std::int64_t updates = 0;        ///< leases of its that went into updates
  double staleness_mean = 0;       ///< of these
  std::int64_t staleness_max = 0;  ///< of these
  std::int64_t dropped = 0;        ///< leases whose gradients were not finite
  std::string state = {};          ///< at the end: here, left (in good order), lost
};
/// The same of all of them.
struct ServerReport {
  int servers = 1;                               ///< that kept the parameters
  std::string consistency = {};                  ///< servers.consistency
  std::int64_t updates = 0;                      ///< changes of the parameters in this run
  double staleness_mean = 0;                     ///< over all leases, in updates
  std::int64_t staleness_max = 0;                ///< over all leases
  std::int64_t samples_repeated = 0;             ///< leased out again after a loss
  std::vector<ServerWorkerReport> workers = {};  ///< by rank
};

/// One point of the run's history, for pictures.
struct HistoryPoint {
  std::int64_t step = 0;                                              ///< of the run
  double elapsed_s = 0, loss = 0, samples_per_s = 0, efficiency = 0;  ///< as Progress has them
  std::vector<std::int64_t> shares = {};                              ///< of the batch, by rank
};

/// For a run in which a worker computed in float16 (docs/precision.md).
struct LossScaleReport {
  double scale = 0;                ///< at the end
  std::int64_t skipped_steps = 0;  ///< since the job's start
};

/// Everything that the balancer saw, for replaying it (bench/replay_balance.py): the probes' t(b) =
/// alpha + beta·b of each rank, and each step's figures from the first one on.
struct BalanceRecord {
  static constexpr std::size_t kMost = 10'000;  ///< steps; later ones are not kept

  /// The measurement of a rank before training.
  struct Probe {
    double alpha_s = 0, beta_s = 0;  ///< both 0: unknown
  };
  /// By rank, as balance::StepFigures.
  struct Step {
    std::vector<std::int64_t> batch = {};         ///< samples
    std::vector<double> compute_s = {};           ///< seconds
    std::vector<bool> out_of_memory = {};         ///< whose share did not fit
    std::vector<std::int64_t> shadow_batch = {};  ///< as balance::StepFigures
    std::vector<double> shadow_s = {};            ///< its seconds
  };

  std::string policy = {};         ///< auto, equal, fixed
  std::int64_t global_batch = 0;   ///< samples of a step
  std::vector<Probe> probes = {};  ///< by rank
  std::vector<Step> steps = {};    ///< from the first one on
  bool complete = true;            ///< whether all steps are there
};

/// How the model was cut: docs/pipeline.md.
struct MeshReport {
  std::int64_t stages = 1, replicas = 1;  ///< of the mesh
  std::vector<std::int64_t> uneven = {};  ///< replicas by stage, where they are not alike
  std::int64_t tensor = 1;                ///< ranks with parts of tensors
  std::vector<std::int64_t> parts = {};   ///< ranks of a replica by stage, where they are not alike
  std::string schedule = {};              ///< mesh.schedule
  std::vector<std::int64_t> begins = {};  ///< the unit that each piece of the model begins with
};

/// One evaluation with the test data, or with the held-out validation data.
struct EvaluationPoint {
  std::int64_t step = 0;         ///< after which it was
  double elapsed_s = 0;          ///< as Report::elapsed_s, up to then
  Metrics metrics = {};          ///< by name
  std::string data = kTestData;  ///< that it was judged by
};

/// The best of all evaluations with validation data.
struct BestReport {
  std::int64_t step = 0;        ///< after which it was
  double loss = 0;              ///< on the validation data
  Metrics metrics = {};         ///< by name
  std::string checkpoint = {};  ///< of that step, where it is kept (checkpoint.keep_best)
};

/// The results of a run: docs/report.md.
struct Report {
  int world_size = 1;              ///< ranks at its end
  std::int64_t steps = 0;          ///< done
  double elapsed_s = 0;            ///< training steps alone: no start-up, probing, evaluation
  std::string counts = "samples";  ///< what rates and shares count: "images", "tokens"
  double samples_per_s = 0;        ///< of the training steps
  double efficiency = 0;           ///< of the devices' own rates, 0…1
  double train_loss = 0;           ///< mean over the last epoch's (or part's) samples
  std::int64_t bytes_sent = 0;     ///< by all ranks
  bool left = false;         ///< this rank has left, and the others go on: the report is empty
  bool interrupted = false;  ///< by a signal
  std::vector<WorkerReport> workers = {};          ///< by number
  std::vector<HistoryPoint> history = {};          ///< thinned
  std::vector<EvaluationPoint> evaluations = {};   ///< the last ones' are the report's own metrics
  std::optional<ServerReport> server = {};         ///< of parameter servers
  std::optional<LossScaleReport> loss_scale = {};  ///< of float16
  std::optional<BalanceRecord> balance = {};       ///< none with parameter servers
  std::optional<MeshReport> mesh = {};             ///< where workers have parts of the model alone
  std::optional<BestReport> best = {};             ///< where data was held out
  std::vector<MembersChange> changes = {};         ///< of an elastic job
};

/// The metrics of the last evaluation with that data; none if there was none.
Metrics last_metrics(const Report& report, std::string_view data = kTestData);

/// As docs/report.md has it.
std::string to_json(const Report& report);

/// Atomic (written aside and renamed). Error(System) names the path and the cause.
void write_report(const Report& report, const std::filesystem::path& path);

}  // namespace bimetal::progress
