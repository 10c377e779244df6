#pragma once
// Measures, before the first step, how long this job's steps take on each device, so that already
// the first shares fit.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/plan/link_probe.h"
#include "bimetal/progress/worker_summary.h"
#include "bimetal/task/task.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/share/compute.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

// Steps of a job that train nothing: for measuring how long they take.

/// A task's model and a job's optimizer, which moves nothing. Use from one thread at a time.
class Rehearsal {
 public:
  /// Draws from torch's default generator. `task` must outlive it. `update`: steps end with the
  /// optimizer's, whose state is what needs most memory.
  Rehearsal(const job::TrainConfig& job, const task::Task& task, const Computing& on,
            bool update = true);
  /// With a model that is there, and without updates. Its buffers become any.
  Rehearsal(const job::TrainConfig& job, const task::Task& task, const Computing& on,
            const task::Model& model);

  /// Seconds of one step (forward, backward and, if asked for, update) on the first `samples`
  /// samples of the training data; emulated slowness is not in them.
  double step(std::int64_t samples);

  /// The weight of these samples.
  std::int64_t weight(std::int64_t samples) const { return task::weight_of(*data_, 0, samples); }

 private:
  std::shared_ptr<const task::Dataset> data_;
  torch::Device device_;
  task::Model model_;
  Compute compute_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;  ///< none: no updates
};

struct ProbeOptions {
  Computing on = {};
  std::chrono::milliseconds budget{800};
  bool update = true;             ///< steps end with the optimizer's
  bool skip = false;              ///< the model is known not to fit: its cost stays unknown
  balance::CostModel known = {};  ///< from before: nothing is measured
  /// To be measured in place of one of the probe's own, where no values are lost by that: where
  /// others have them. Few steps are made, and updates are measured by some of the elements.
  const task::Model* model = nullptr;
};

/// t(b) = α + β·b of one step (forward, backward, update) of `task` on this device, b being the
/// weight of its samples, from steps of two sizes on the first samples of the training data. It
/// trains a model of its own, thrown away afterwards. Draws from torch's default generator: seed it
/// afterwards. Unknown (CostModel::known()) if not even the smallest batch fits into memory.
balance::CostModel probe_step(const job::TrainConfig& job, const task::Task& task,
                              const ProbeOptions& options);

/// Every rank probes at the same time, since they will compute at the same time, and learns every
/// rank's result. Collective.
std::vector<balance::Device> probe_devices(comm::Group group, const job::TrainConfig& job,
                                           const task::Task& task, const ProbeOptions& options);

/// For ranks whose steps are not measured: each device's speed of float32 products, times the
/// `speed` that is emulated here; in any unit. All 1 if some rank cannot tell. Collective.
std::vector<double> probe_products(comm::Group group, const torch::Device& device, double speed);

// How a rank without samples goes on measuring itself: one batch now and then, beside the others'
// work, whose gradient nobody uses (docs/balance.md, "Zero shares").

/// Computes on a thread (and, on an accelerator, a stream) of its own with a model of its own. So
/// it holds nobody up, however long it takes, and touches neither the job's parameters and buffers
/// nor its sampler and random numbers. Use from one thread.
class ShadowBatch {
 public:
  /// `job` and `task` must outlive it. options.budget is not used.
  ShadowBatch(const job::TrainConfig& job, const task::Task& task, const ProbeOptions& options)
      : job_(job), task_(task), options_(options) {}
  /// Waits for the batch under way.
  ~ShadowBatch() = default;
  ShadowBatch(const ShadowBatch&) = delete;
  ShadowBatch& operator=(const ShadowBatch&) = delete;

  /// Starts on samples of about that weight > 0; does nothing while another batch is under way, or
  /// after one did not fit into memory.
  void begin(std::int64_t weight);

  /// The measurement made since the last call, emulated slowness included; nothing if there is
  /// none. Rethrows errors other than a lack of memory.
  progress::ShadowFigures take();

  /// Gives the memory back, once nothing is under way: the rank has samples again.
  void rest();

 private:
  bool under_way() const { return running_.valid(); }

  const job::TrainConfig& job_;
  const task::Task& task_;
  ProbeOptions options_;
  std::optional<Rehearsal> rehearsal_;
  bool fits_ = true;
  std::int64_t weight_ = 0;
  std::future<double> running_;  ///< last: ends before the members that it uses
};

// The facts of a plan on each rank's device.

/// One rank's device. Speeds are 0 where the device could not be measured.
struct RankDevice {
  std::string host;
  std::string worker;  ///< as asked for: "cpu:threads=1"
  std::string device;  ///< as found: "cpu", "cuda:0"
  std::string name;    ///< "AMD EPYC 7B13"
  std::uint64_t memory_free_bytes = 0;
  double matmul_float32_gflops = 0;
  double matmul_half_gflops = 0;  ///< as device/probe.h has it
  bool has_graphs = false;        ///< what train.graphs asks for: device/graph.h
  bool may_be_lower = false;      ///< it computes in float32 by default, and could in bfloat16
  double convolution_float32_gflops = 0;
  double memory_bytes_per_s = 0;
  plan::HostCopies copies = {};  ///< for data to other ranks through its host's memory
};

/// Without speeds and the like but those of copies; with them, which takes about half a second.
RankDevice named_device(const torch::Device& device, const TrainerOptions& options);
RankDevice measured_device(const torch::Device& device, const TrainerOptions& options);

/// By rank. Collective.
std::vector<RankDevice> gather_devices(comm::Group group, RankDevice mine, Deadline deadline);

/// A worker's name in advice: as it was asked for, or as its device turned out to be; with its
/// machine if there are several.
std::string short_name(const RankDevice& device, const std::vector<RankDevice>& all);

}  // namespace bimetal::train
