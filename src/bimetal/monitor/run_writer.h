#pragma once
// Writes a running training's training.json (run_record.h), on a thread of its own.

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "bimetal/monitor/history.h"
#include "bimetal/monitor/recorder.h"
#include "bimetal/monitor/run_record.h"

namespace bimetal::monitor {

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

}  // namespace bimetal::monitor
