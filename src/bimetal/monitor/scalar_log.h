#pragma once
// A job's figures as scalars for TensorBoard, written by a thread of its own: a slow disk holds up
// no step.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/monitor/status.h"

namespace bimetal::monitor {

// TensorBoard's event files: records in TFRecord's framing, each a protocol buffer of type Event.
// Only the parts that scalars need are here, written out by hand: the whole of TensorFlow's
// messages would come with a compiler for them. Pure functions, but for EventFile. Sources:
//   framing and checksum: tensorflow/core/lib/io/record_writer.h, tensorflow/core/lib/hash/crc32c.h
//   messages: tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto
//   encoding: https://protobuf.dev/programming-guides/encoding/

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
std::uint32_t crc32c(std::string_view bytes) noexcept;

/// The checksum as TFRecord stores it: rotated and shifted, since a checksum of bytes that hold
/// their own checksum is weak.
std::uint32_t masked_crc32c(std::string_view bytes) noexcept;

/// u64 length, its masked checksum, the data, their masked checksum; all little-endian.
std::string frame_record(std::string_view data);

struct Scalar {
  std::string tag;  ///< "loss", "images_per_s/rank_0"; TensorBoard groups by the part before
                    ///< the '/'
  float value = 0;
};

/// An Event with a Summary of these scalars. `wall_time`: Unix time, seconds.
std::string encode_scalars(double wall_time, std::int64_t step, std::span<const Scalar> scalars);

/// The Event that every file begins with.
std::string encode_file_version(double wall_time);

/// The Event that says: what older files have from `step` on is superseded.
std::string encode_session_start(double wall_time, std::int64_t step);

/// One event file, appended to. Use from one thread.
class EventFile {
 public:
  /// Makes `folder` if need be, and in it a file of a name that no other process takes:
  /// events.out.tfevents.SECONDS.HOST.PID.bimetal. Error(System) names the path.
  EventFile(const std::filesystem::path& folder, const std::string& host);

  /// Error(System) names the path, for a full disk and the like.
  void append(std::string_view event);
  void flush();

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  void require_good();

  std::filesystem::path path_;
  std::ofstream file_;
};

/// add_step() and add_evaluation() come from one thread and never wait for the disk. If the disk
/// fails, a warning is logged, and nothing is written from then on.
class ScalarLog {
 public:
  /// Error(System) where the folder or the file cannot be made.
  ScalarLog(const std::filesystem::path& folder, const std::string& host);
  /// Writes the rest.
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
