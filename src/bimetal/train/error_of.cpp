#include "bimetal/train/error_of.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <system_error>

#include "bimetal/base/to_error.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/train/deterministic.h"

namespace bimetal::train {
namespace {

/// Of a thread that cannot be started, too, which may be for want of memory or of leave.
std::string first_line(const std::exception& exception) {
  if (dynamic_cast<const std::system_error*>(&exception)) return to_error(exception).what();
  const auto* of_torch = dynamic_cast<const c10::Error*>(&exception);
  const std::string text = of_torch ? of_torch->what_without_backtrace() : exception.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

Error error_of(const std::exception& exception, const std::string& who, std::optional<int> rank) {
  const bool memory = device::is_out_of_memory(std::current_exception());
  const auto refused = nondeterministic_operation(first_line(exception));
  const auto code = memory    ? ErrorCode::OutOfMemory
                    : refused ? ErrorCode::Unsupported
                              : ErrorCode::Internal;
  return Error(code,
               fmt::format("{}{}: {}", who, memory ? " ran out of memory" : "",
                           refused ? *refused : first_line(exception)),
               rank);
}

}  // namespace bimetal::train
