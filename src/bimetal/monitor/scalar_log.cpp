#include "bimetal/monitor/scalar_log.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/monitor/status.h"

#ifdef _WIN32
#include <process.h>
#else
#include <unistd.h>
#endif

namespace bimetal::monitor {
namespace {

constexpr std::uint32_t kCastagnoliReflected = 0x82f63b78;

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    auto remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ (remainder & 1 ? kCastagnoliReflected : 0);
    }
    table[byte] = remainder;
  }
  return table;
}

constexpr auto kCrcTable = make_crc_table();

template <typename Integer>
void put_little_endian(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i));
}

// Wire types of protocol buffers.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, std::uint32_t field, Wire wire) {
  put_varint(out, field << 3 | static_cast<std::uint32_t>(wire));
}

void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_key(out, field, Wire::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// Fields of Event, Summary, Summary.Value and SessionLog.
enum : std::uint32_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum : std::uint32_t { kSummaryValue = 1 };
enum : std::uint32_t { kValueTag = 1, kValueSimple = 2 };
enum : std::uint32_t { kSessionStatus = 1 };
constexpr std::uint64_t kSessionStart = 1;

std::string event_at(double wall_time, std::int64_t step) {
  std::string event;
  put_key(event, kWallTime, Wire::fixed64);
  put_little_endian(event, std::bit_cast<std::uint64_t>(wall_time));
  put_key(event, kStep, Wire::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

std::string encode_value(const Scalar& scalar) {
  std::string value;
  put_bytes(value, kValueTag, scalar.tag);
  put_key(value, kValueSimple, Wire::fixed32);
  put_little_endian(value, std::bit_cast<std::uint32_t>(scalar.value));
  return value;
}

int own_process_id() {
#ifdef _WIN32
  return ::_getpid();
#else
  return ::getpid();
#endif
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  }
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) noexcept {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

std::string frame_record(std::string_view data) {
  std::string length;
  put_little_endian(length, static_cast<std::uint64_t>(data.size()));
  std::string record = length;
  put_little_endian(record, masked_crc32c(length));
  record += data;
  put_little_endian(record, masked_crc32c(data));
  return record;
}

std::string encode_scalars(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const auto& scalar : scalars) put_bytes(summary, kSummaryValue, encode_value(scalar));
  auto event = event_at(wall_time, step);
  put_bytes(event, kSummary, summary);
  return event;
}

std::string encode_file_version(double wall_time) {
  auto event = event_at(wall_time, 0);
  put_bytes(event, kFileVersion, "brain.Event:2");
  return event;
}

std::string encode_session_start(double wall_time, std::int64_t step) {
  std::string session;
  put_key(session, kSessionStatus, Wire::varint);
  put_varint(session, kSessionStart);
  auto event = event_at(wall_time, step);
  put_bytes(event, kSessionLog, session);
  return event;
}

EventFile::EventFile(const std::filesystem::path& folder, const std::string& host) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw Error(ErrorCode::System, fmt::format("cannot make the folder {} for TensorBoard: {}",
                                               folder.string(), error.message()));
  }
  const auto now = unix_time();
  path_ = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.bimetal",
                               static_cast<std::int64_t>(now), host, own_process_id());
  file_.open(path_, std::ios::binary | std::ios::app);
  require_good();
  append(encode_file_version(now));
  flush();
}

void EventFile::append(std::string_view event) {
  const auto record = frame_record(event);
  file_.write(record.data(), static_cast<std::streamsize>(record.size()));
  require_good();
}

void EventFile::flush() {
  file_.flush();
  require_good();
}

void EventFile::require_good() {
  if (file_) return;
  throw system_error(fmt::format("cannot write {}", path_.string()), errno);
}

namespace {

constexpr double kStepEverySeconds = 0.1;
constexpr std::chrono::milliseconds kWriteEvery{500};
// A disk that hangs for minutes costs points, not memory without end.
constexpr std::size_t kMostWaiting = 10000;

void add_known(std::vector<Scalar>& scalars, std::string tag, std::optional<double> value) {
  if (value) scalars.push_back({std::move(tag), static_cast<float>(*value)});
}

std::vector<Scalar> scalars_of(const Status& status) {
  std::vector<Scalar> scalars;
  add_known(scalars, "loss", status.loss);
  const auto rate = status.counts + "_per_s";
  add_known(scalars, rate, status.samples_per_s);
  add_known(scalars, "efficiency", status.efficiency);
  for (const auto& worker : status.workers) {
    const auto tag = [&](const std::string& what) {
      return fmt::format("{}/rank_{}", what, worker.rank);
    };
    add_known(scalars, tag("share"), static_cast<double>(worker.share));
    add_known(scalars, tag("worker_" + rate), worker.samples_per_s);
    add_known(scalars, tag("wait_part"), worker.wait_part);
    add_known(scalars, tag("bytes_per_s"), worker.bytes_per_s);
    add_known(scalars, tag("staleness"), worker.staleness);
  }
  return scalars;
}

}  // namespace

ScalarLog::ScalarLog(const std::filesystem::path& folder, const std::string& host)
    : file_(folder, host), thread_([this] { write_until_stopped(); }) {}

ScalarLog::~ScalarLog() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool ScalarLog::wants_step() const {
  return !any_step_ || since_step_.seconds() >= kStepEverySeconds;
}

void ScalarLog::add_step(const Status& status) {
  any_step_ = true;
  since_step_ = Stopwatch();
  add(status.step, scalars_of(status));
}

void ScalarLog::add_evaluation(std::int64_t step, const progress::Evaluation& evaluation) {
  std::vector<Scalar> scalars;
  const auto prefix = evaluation.data + "_";
  for (const auto& [name, value] : evaluation.metrics) add_known(scalars, prefix + name, value);
  add_known(scalars, prefix + "loss", evaluation.loss);
  add(step, std::move(scalars));
}

void ScalarLog::add(std::int64_t step, std::vector<Scalar> scalars) {
  const std::scoped_lock lock(mutex_);
  if (waiting_.size() < kMostWaiting) {
    waiting_.push_back({unix_time(), step, std::move(scalars)});
  }
}

void ScalarLog::write_until_stopped() {
  bool failed = false;
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    wake_.wait_for(lock, kWriteEvery, [this] { return stopped_; });
    last = stopped_;
    const auto points = std::exchange(waiting_, {});
    if (failed || points.empty()) continue;
    lock.unlock();
    try {
      write(points);
    } catch (const Error& error) {
      failed = true;
      log(LogLevel::warning, "{}; nothing more is written for TensorBoard", error.what());
    }
    lock.lock();
  }
}

void ScalarLog::write(const std::vector<Point>& points) {
  // A job that goes on from a checkpoint does some steps again: the new ones count.
  if (!std::exchange(begun_, true)) {
    file_.append(encode_session_start(points.front().wall_time, points.front().step));
  }
  for (const auto& point : points) {
    file_.append(encode_scalars(point.wall_time, point.step, point.scalars));
  }
  file_.flush();
}

}  // namespace bimetal::monitor
