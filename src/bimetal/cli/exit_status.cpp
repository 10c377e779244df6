#include "bimetal/cli/exit_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

std::mutex output_mutex;
Listener listener;

}  // namespace

int exit_status(ErrorCode code) noexcept {
  // Written out, since scripts rely on the numbers.
  switch (code) {
    case ErrorCode::InvalidArgument: return kUsage;
    case ErrorCode::Unsupported: return 3;
    case ErrorCode::Timeout: return 4;
    case ErrorCode::PeerLost: return 5;
    case ErrorCode::Aborted: return 6;
    case ErrorCode::Unauthorized: return 7;
    case ErrorCode::ProtocolMismatch: return 8;
    case ErrorCode::CallMismatch: return 9;
    case ErrorCode::CorruptData: return 10;
    case ErrorCode::OutOfMemory: return 11;
    case ErrorCode::NotFinite: return 12;
    case ErrorCode::System: return 13;
    case ErrorCode::Internal: return 14;
  }
  return 14;
}

Error as_error(const std::exception& exception) {
  const auto error = to_error(exception);
  if (error.code() != ErrorCode::Internal || dynamic_cast<const Error*>(&exception)) return error;
  const std::string text = error.what();
  return {ErrorCode::Internal, text.substr(0, text.find('\n'))};
}

void print_error(const Error& error) {
  print_to_errors(fmt::format("bimetal: error: {}", error.what()));
}

void show_warnings(const Listener& also) {
  {
    const std::scoped_lock lock(output_mutex);
    listener = also;
  }
  const char* rank = std::getenv("RANK");
  const std::string who = rank ? fmt::format("bimetal: rank {}", rank) : "bimetal";
  set_log_sink(
      [who, also](LogLevel level, std::string_view message) {
        if (also) also(to_string(level), message);
        print_to_errors(fmt::format("{}: {}: {}", who, to_string(level), message));
      },
      std::min(log_level_from_environment().value_or(LogLevel::warning), LogLevel::warning));
}

void note_output(std::string_view line) {
  const std::scoped_lock lock(output_mutex);
  if (listener) listener("output", line);
}

}  // namespace bimetal::cli
