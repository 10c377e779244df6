#include "bimetal/base/log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"

namespace bimetal {
namespace {

constexpr int kOff = 1 << 20;

// In the order of LogLevel.
constexpr std::array<std::string_view, 5> kNames = {"trace", "debug", "info", "warning", "error"};

std::atomic<int> threshold{kOff};
std::mutex sink_mutex;

std::shared_ptr<const LogSink>& current_sink() {
  static std::shared_ptr<const LogSink> sink;
  return sink;
}

}  // namespace

void set_log_sink(LogSink sink, LogLevel level) {
  const bool on = static_cast<bool>(sink);
  std::lock_guard lock(sink_mutex);
  current_sink() = std::make_shared<const LogSink>(std::move(sink));
  threshold.store(on ? static_cast<int>(level) : kOff, std::memory_order_relaxed);
}

std::optional<LogLevel> log_level_from_environment() {
  const char* const variable = std::getenv("BIMETAL_DEBUG");
  std::string word = variable ? variable : "";
  for (char& letter : word) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  if (word.empty() || word == "off") return std::nullopt;
  if (word == "detail") return LogLevel::trace;  // as TORCH_DISTRIBUTED_DEBUG has it
  for (std::size_t level = 0; level < kNames.size(); ++level) {
    if (word == kNames[level]) return static_cast<LogLevel>(level);
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("BIMETAL_DEBUG is '{}'; it must be off, error, warning, info, debug, "
                          "trace or detail",
                          variable));
}

std::string_view to_string(LogLevel level) noexcept {
  return kNames[static_cast<std::size_t>(level)];
}

bool log_enabled(LogLevel level) noexcept {
  return static_cast<int>(level) >= threshold.load(std::memory_order_relaxed);
}

void log_message(LogLevel level, std::string_view message) {
  std::shared_ptr<const LogSink> sink;
  {
    std::lock_guard lock(sink_mutex);
    sink = current_sink();
  }
  // Called outside the lock: a sink may itself log, or replace the sink.
  if (sink && *sink) (*sink)(level, message);
}

namespace {

/// Variables of Open MPI, of MPICH and its relatives, and of launchers that start processes by
/// PMIx.
constexpr const char* kOfMpirun[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

}  // namespace

bool is_capable_terminal(int descriptor) {
  const char* kind = std::getenv("TERM");
  return kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb" &&
         is_terminal(descriptor);
}

bool may_rewrite(int descriptor) {
  return is_capable_terminal(descriptor) && !is_set("NO_COLOR") &&
         std::ranges::none_of(kOfMpirun, is_set);
}

}  // namespace bimetal
