#pragma once
// The state that a process's Job handles and trainers share. Private to api.

#include <torch/csrc/api/include/torch/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/api/balanced_steps.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/net/token.h"
#include "bimetal/optim/clip.h"
#include "bimetal/precision/precision.h"
#include "bimetal/progress/journal.h"
#include "bimetal/progress/observer.h"
#include "bimetal/train/collective_update.h"

namespace bimetal::api {

/// `whose`: the options' name, for messages; `loss_scale`: of float16, which alone is scaled; 0
/// finds it out. Error(InvalidArgument) for a scale with another precision.
train::UpdateOptions update_options(const char* whose, precision::Precision precision,
                                    double loss_scale, const optim::GradientLimits& limits);

/// How this process came into its job.
struct Start {
  job::WorkerSpec worker = {};
  std::string worker_text = {};  ///< the same, for people
  std::optional<launch::RankEnvironment> rank = {};
  net::Token token = {};
  std::string doors =
      {};  ///< of members that it is to join; empty: it has been there from the start
};

class Session {
 public:
  /// Applies the worker's limits to this process and picks its device.
  Session(comm::Group group, Start start);
  /// When an exception ends the program's loop, the other ranks are told who has failed. If nobody
  /// catches it, they are told its text before it ends the process.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const comm::Group& group() const noexcept { return group_; }
  const torch::Device& device() const noexcept { return device_; }
  double speed() const noexcept { return start_.worker.speed; }
  const Start& start() const noexcept { return start_; }

  /// Says which rank computes which part of a batch. To be set before loops.
  const train::Lanes& lanes() const noexcept { return lanes_; }
  void set_lanes(const train::Lanes& lanes) { lanes_ = lanes; }

  /// Begins a loop; the one before it is over. Loops over as many samples with one seed go on with
  /// the epochs of each other. Collective.
  std::shared_ptr<BalancedSteps> begin(std::shared_ptr<const task::Dataset> dataset,
                                       const BalancedOptions& options);

  /// The loop that runs. Error(InvalidArgument) if none was begun.
  BalancedSteps& steps() const;

  /// This rank's requests to all ranks, sent with its next step.
  progress::Wishes wishes();
  /// The step under way has ended by `update`, on all ranks alike.
  void end_step(const train::StepResult& result, train::CollectiveUpdate& update);

  /// The observer that is told of events; never none.
  void watch(std::shared_ptr<progress::Observer> observer) { observer_ = std::move(observer); }
  progress::Observer& observer() const noexcept { return *observer_; }
  void tell(const progress::Evaluation& evaluation) const;

  /// For a checkpoint after a step of `update`: everything except the model owner's part.
  checkpoint::TrainingState state_after(train::CollectiveUpdate& update) const;
  /// The way back. Returns a loop's starting point.
  StartingPoint go_on_with(const checkpoint::TrainingState& state, train::CollectiveUpdate& update);

  // For workers that come and go: bimetal::elastic.

  /// This rank leaves after the next step. Safe from any thread and signal handler.
  void leave() noexcept { leaves_ = true; }
  bool leaves() const noexcept { return leaves_; }

  /// Until end_elastic(): `somebody_waits` is asked with each step; `kept`: the optimizer, and with
  /// it the model, that each rank has whole, or nullptr.
  void begin_elastic(std::function<bool()> somebody_waits, const torch::optim::Optimizer* kept);
  void end_elastic();
  bool is_elastic() const noexcept { return static_cast<bool>(somebody_waits_); }
  const torch::optim::Optimizer* kept() const noexcept { return kept_; }

  /// Where newcomers can join; none outside of an elastic loop.
  void set_doors(std::vector<std::string> doors) { doors_ = std::move(doors); }
  const std::vector<std::string>& doors() const noexcept { return doors_; }

  /// Anything made of this session from now on has these ranks.
  void enter(comm::Group group);
  /// Grows with enter().
  int group_number() const noexcept { return group_number_; }
  /// Error(InvalidArgument) for a `whose`, as "DataParallel", that was made before the last
  /// enter().
  void require_of_these_ranks(int group_number, const char* whose) const;

  /// Error(InvalidArgument) for another optimizer than the one that is kept.
  void require_kept(const torch::optim::Optimizer& optimizer) const;
  /// Error(Unsupported) where the model is kept whole: `what` would leave each rank a part of it.
  void require_not_kept(const char* what) const;

  /// Steps of all loops so far, those before a checkpoint included.
  std::int64_t steps_done() const noexcept { return steps_done_; }
  /// As of the last step of an elastic loop: what state_after() gives. None: there was none.
  const std::optional<checkpoint::TrainingState>& reached() const noexcept { return reached_; }
  void set_reached(checkpoint::TrainingState state);
  /// The loss scale as of then.
  void restore_scale(train::CollectiveUpdate& update) const;

 private:
  Start start_;
  comm::Group group_;
  train::Lanes lanes_;
  std::int64_t steps_done_ = 0;
  torch::Device device_{torch::kCPU};
  std::shared_ptr<BalancedSteps> steps_;
  using Order = std::pair<std::int64_t, std::uint64_t>;  ///< what it depends on: samples and seed
  Order under_way_;                                      ///< that of steps_
  std::map<Order, std::int64_t> next_epochs_;            ///< of loops that are over
  std::shared_ptr<progress::Observer> observer_ = std::make_shared<progress::Observer>();
  progress::LossTrend loss_trend_{/*fresh=*/true};
  const int exceptions_;  ///< under way when it was made

  std::atomic<bool> leaves_ = false;
  std::function<bool()> somebody_waits_;  ///< none: the workers stay the same
  const torch::optim::Optimizer* kept_ = nullptr;
  std::vector<std::string> doors_;
  int group_number_ = 0;
  std::optional<checkpoint::TrainingState> reached_;
};

}  // namespace bimetal::api
