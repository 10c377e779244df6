#pragma once
// The means to watch a job: a page for `bimetal top`, one for Prometheus, and scalars for
// TensorBoard (docs/monitoring.md). Each is there only if it was asked for.

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/monitor/history.h"
#include "bimetal/monitor/page.h"
#include "bimetal/monitor/recorder.h"
#include "bimetal/monitor/run_record.h"
#include "bimetal/monitor/scalar_log.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/http/http_server.h"
#include "bimetal/net/token.h"
#include "bimetal/progress/observer.h"

namespace bimetal::monitor {

// Writes a running training's training.json (run_record.h), on a thread of its own.

/// There is no file before the first step. A training that goes on from a checkpoint goes on with
/// the record, too. If the disk fails, nothing is written, and training goes on.
class RunWriter {
 public:
  /// `recorder` and `history` must outlive it.
  RunWriter(const Recorder& recorder, const History& history, std::filesystem::path folder,
            std::string job);
  /// Writes how it has ended: without a call of end() it has failed.
  ~RunWriter();
  RunWriter(const RunWriter&) = delete;
  RunWriter& operator=(const RunWriter&) = delete;

  /// The address at which people find it while it runs. Call it before the first step.
  void set_place(std::string host, std::string address);

  /// Another process goes on with the run, and with its record.
  void hand_on();

  /// `loss`: the mean over the last epoch.
  void end(bool interrupted, double loss);

 private:
  void write_until_ended();
  void write();
  RunRecord record();

  const Recorder& recorder_;
  const History& history_;
  const std::filesystem::path folder_;
  const std::string job_;
  std::optional<RunRecord> before_;  ///< the record that it goes on with
  bool begun_ = false;               ///< the writing thread's, like before_
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string host_, address_, state_ = "running";
  std::optional<double> loss_;
  bool ended_ = false, handed_on_ = false;
  std::thread thread_;
};

struct MonitorOptions {
  std::optional<net::Endpoint> listen = {};  ///< port 0: a free one
  net::Token job_token = {};                 ///< needed beyond loopback, and asked for there alone
  std::filesystem::path tensorboard_dir = {};  ///< empty: no scalars
  std::string host_name = {};
  Buttons buttons = {};                ///< of the page
  std::filesystem::path run_dir = {};  ///< of its checkpoints, where its record is; empty: none
  std::string job = {};                ///< the job file, for the record
};

/// Error(Unauthorized) for an address beyond loopback and no token: anyone could watch the job.
void require_token_for_monitor(const net::Endpoint& listen, const net::Token& job_token);

/// An observer for rank 0. Its calls come from one thread and copy some numbers. Another thread
/// answers requests for pages.
class Monitor final : public progress::Observer {
 public:
  /// Errors: Unauthorized for an address beyond loopback without a token; System for a port in use
  /// or a folder that cannot be written.
  explicit Monitor(const MonitorOptions& options);
  ~Monitor() override;

  /// The address of the pages, with the real port; nothing if nobody asked for them.
  std::optional<net::Endpoint> endpoint() const;
  /// The same as other machines reach it, HOST:PORT; empty if nobody asked for them.
  std::string address() const;
  /// The link by which a browser opens the page, once: it may press buttons then. Empty likewise.
  std::string link();
  /// Its path alone, which is another one each time.
  std::string link_path() { return access_.new_link(); }

  /// Another process leads the run from now on: that one's is the record.
  void hand_on();
  /// The run has ended well, with that loss: for its record.
  void end(bool interrupted, double loss);

  void on_phase(const std::string& what) override;
  void on_data(const progress::DataProgress& progress) override;
  void on_workers(const std::vector<progress::WorkerPlace>& places) override;
  void on_step(const progress::Progress& progress) override;
  void on_evaluated(std::int64_t epoch, const progress::Evaluation& evaluation) override;
  void on_checkpoint(const std::string& path, std::int64_t step) override;
  void on_rescue(const progress::Rescue& rescue) override;
  void on_profile(const progress::StepTimes& times) override;
  void on_notice(const std::string& text) override;
  void on_sample(const progress::Sample& sample) override;
  void on_rank_lines(int worker, const std::string& host,
                     const std::vector<progress::RankLine>& lines) override;
  void on_members(const progress::MembersChange& change) override;

 private:
  void log_step();
  net::HttpAnswer answer(const net::HttpRequest& request, std::string_view body);

  Recorder recorder_;
  History history_;
  Access access_;
  Page page_;
  std::optional<ScalarLog> scalars_;
  std::optional<RunWriter> writer_;
  std::int64_t step_ = 0, logged_step_ = 0;
  std::optional<net::HttpServer> server_;  // last: it asks the recorder
};

}  // namespace bimetal::monitor
