#include "bimetal/base/log.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace bimetal {
namespace {

constexpr int kOff = 1 << 20;
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

}  // namespace bimetal
