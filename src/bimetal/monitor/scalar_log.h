#pragma once
// A job's figures as scalars for TensorBoard, written by a thread of its own: a slow disk holds up
// no step.

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/base/stopwatch.h"
#include "bimetal/monitor/event_file.h"
#include "bimetal/monitor/status.h"

namespace bimetal::monitor {

/// add_step() and add_evaluation() come from one thread and never wait for the disk. Where the disk
/// fails, a warning is logged, and nothing is written from then on.
class ScalarLog {
 public:
  /// Error(System) where the folder or the file cannot be made.
  ScalarLog(const std::filesystem::path& folder, const std::string& host);
  /// Writes what is left.
  ~ScalarLog();
  ScalarLog(const ScalarLog&) = delete;
  ScalarLog& operator=(const ScalarLog&) = delete;

  /// Whether the last step was added so long ago that another one is due: a tenth of a second, or
  /// none was.
  bool wants_step() const;

  /// The scalars of `status` at its step: docs/monitoring.md lists them.
  void add_step(const Status& status);
  void add_evaluation(std::int64_t step, const progress::Evaluation& evaluation);

 private:
  struct Point {
    double wall_time = 0;
    std::int64_t step = 0;
    std::vector<Scalar> scalars;
  };

  void add(std::int64_t step, std::vector<Scalar> scalars);
  void write_until_stopped();
  void write(const std::vector<Point>& points);

  EventFile file_;
  bool begun_ = false;  ///< the writing thread's
  bool any_step_ = false;
  Stopwatch since_step_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Point> waiting_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace bimetal::monitor
