#pragma once
// One parameter server's process: its parts, how it leads or follows (server_process_run.cpp), and
// its answers to the events of training (server_process_events.cpp).

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/data/transfer/data_link.h"
#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/shard_store.h"
#include "bimetal/predict/evaluate.h"
#include "bimetal/progress/journal.h"
#include "bimetal/train/server/job_predictions.h"
#include "bimetal/train/server/server_job.h"
#include "bimetal/train/server/server_setup.h"
#include "bimetal/train/setup.h"

namespace bimetal::train {

namespace ps = parallel::server;

/// One server's run. Its members are made in the order of their declaration.
class ServerProcess {
 public:
  ServerProcess(const job::JobConfig& job, const ServerRun& run, progress::Observer& observer);
  progress::Report follow();
  progress::Report coordinate();

 private:
  data::DatasetFiles find_data();
  std::unique_ptr<torch::optim::Optimizer> make_optimizer() const;
  std::unique_ptr<data::DataServer> send_data();
  checkpoint::TrainingState start();
  /// The observer of the start: only server 0 has one.
  progress::Observer& starting() { return run_.server == 0 ? observer_ : quiet_; }
  /// A copy of server 0 tells of its data only where server 0 does not do that already.
  progress::Observer& watching_data() {
    return run_.server == shards() && !run_.joined ? quiet_ : observer_;
  }
  void tell_notes() {
    if (!data_server_) return;
    for (const auto& note : data_server_->take_notes()) observer_.on_notice(note);
  }
  ps::ServerOptions server_options();
  ps::CoordinatorOptions coordinator_options() const;
  progress::Report lead();
  progress::Report follow_events();
  void tell_all_that_it_is_over();
  void serve_predictions();
  int shards() const { return static_cast<int>(job_.servers.weights.size()); }

  void heed(const progress::Asked& asked);
  std::optional<ps::Event> next_event();
  bool handle(const ps::Event& event);
  bool on_pause(const ps::PauseEvent& pause);
  bool by_clock() const;  ///< whether a save is due
  void save_now();
  // Whether this process leads, and may save: server_process_events.cpp.
  bool has_copies() const { return job_.servers.replicas > 1; }
  /// With copies: whether the one of server 0 follows it. Error(Timeout) where it leads.
  bool require_lead();
  std::optional<int> ask_stand_in();
  /// The same before a checkpoint is saved. Error(PeerLost) where nobody follows any more.
  void require_right_to_save();
  /// Error(Timeout) if the folder has a checkpoint that this process cannot have seen.
  void require_newest_here() const;
  void require_own(const checkpoint::LastSave& newest) const;
  void evaluate_now(std::int64_t epoch);
  bool stop_requested() const {
    return asked_to_stop_ || (run_.trainer.stop_requested && run_.trainer.stop_requested());
  }

  const job::JobConfig& job_;
  const ServerRun& run_;
  progress::Observer& observer_;
  progress::Observer quiet_;
  comm::Group alone_;  ///< this process by itself, for code that all modes share
  device::Place place_;
  data::DatasetFiles files_;
  std::unique_ptr<data::DataServer> data_server_;  ///< of the process that leads
  std::shared_ptr<const task::JobTask> task_;
  task::Model model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;  ///< of whole tensors: for checkpoints
  checkpoint::TrainingState state_;
  ps::ShardPlan plan_;
  std::vector<std::string> facts_;  ///< what every client must have alike
  ps::ShardStore store_;
  ps::ParameterServer server_;
  progress::Journal journal_;
  progress::LossTrend loss_trend_;
  std::int64_t start_step_, saved_step_, evaluated_step_ = -1;
  std::uint64_t first_sequence_;           ///< of the checkpoints, when this process began
  std::optional<net::Endpoint> stand_in_;  ///< where it listens, for server 0; nothing: it is gone
  std::uint64_t version_;
  Workers workers_;  ///< as server 0 has last told its stand-in
  std::size_t workers_told_ = 0;
  Deadline ask_again_ = Deadline::at({});  ///< not before, if it has not answered
  bool knows_stand_in_ = false;
  Stopwatch since_save_, looked_;  ///< when the last event was asked for
  bool begun_ = false, stopping_ = false, interrupted_ = false, predictions_failed_ = false;
  bool save_due_ = false;                        ///< a pause for it has been asked for
  bool asked_to_stop_ = false;                   ///< by the page
  std::unique_ptr<JobPredictions> predictions_;  ///< uses all of the above
};

}  // namespace bimetal::train
