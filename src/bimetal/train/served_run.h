#pragma once
// One parameter server's process: what it is made of, how it leads or follows
// (parameter_server_run.cpp), and what it does about the events of training
// (served_run_events.cpp).

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/shard_store.h"
#include "bimetal/train/data_link.h"
#include "bimetal/train/evaluate.h"
#include "bimetal/train/job_predictions.h"
#include "bimetal/train/served_data.h"
#include "bimetal/train/served_job.h"
#include "bimetal/train/served_journal.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/starting_point.h"

namespace bimetal::train {

namespace ps = parallel::server;

inline std::chrono::milliseconds as_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

/// One server's run. Its members are made in the order of their declaration.
class ServedRun {
 public:
  ServedRun(const Job& job, const ServerRun& run, Observer& observer);
  Report serve();
  Report coordinate();

 private:
  data::DatasetFiles find_data();
  std::unique_ptr<DataServer> send_data();
  TrainingState start();
  /// Who is told of the start: by server 0 alone.
  Observer& starting() { return run_.server == 0 ? observer_ : quiet_; }
  /// A copy of server 0 tells of its data only where server 0 does not do that already.
  Observer& watching_data() { return run_.server == shards() && !run_.joined ? quiet_ : observer_; }
  void tell_notes() {
    if (!data_server_) return;
    for (const auto& note : data_server_->take_notes()) observer_.on_notice(note);
  }
  ps::ServerOptions server_options();
  ps::CoordinatorOptions coordinator_options() const;
  Report lead();
  Report follow_events();
  void tell_all_that_it_is_over();
  void serve_predictions();
  int shards() const { return static_cast<int>(job_.parallel.servers.size()); }

  bool handle(const ps::Event& event);
  bool on_pause(const ps::PauseEvent& pause);
  void save_now();
  void evaluate_now(std::int64_t epoch);
  bool stop_requested() const {
    return run_.trainer.stop_requested && run_.trainer.stop_requested();
  }

  const Job& job_;
  const ServerRun& run_;
  Observer& observer_;
  Observer quiet_;
  comm::Group alone_;  ///< this process by itself, for what all modes share
  Place place_;
  data::DatasetFiles files_;
  std::unique_ptr<DataServer> data_server_;  ///< of the process that leads
  data::TrainTest data_;
  std::shared_ptr<models::Classifier> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;  ///< of whole tensors: for checkpoints
  TrainingState state_;
  ps::ShardPlan plan_;
  std::vector<std::string> facts_;  ///< what every client must have alike
  ps::ShardStore store_;
  ps::ParameterServer server_;
  ServedJournal journal_;
  std::int64_t start_step_, saved_step_, evaluated_step_ = -1;
  std::uint64_t version_;
  std::vector<ps::WorkerFigures> workers_;  ///< as server 0 has last told its stand-in
  std::size_t workers_told_ = 0;
  bool begun_ = false, stopping_ = false, interrupted_ = false, predictions_failed_ = false;
  std::unique_ptr<JobPredictions> predictions_;  ///< uses all of the above
};

}  // namespace bimetal::train
