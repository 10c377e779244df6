#include "bimetal/base/error.h"

#include <cerrno>
#include <new>
#include <string>
#include <system_error>

namespace bimetal {

std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::InvalidArgument: return "invalid_argument";
    case ErrorCode::Unsupported: return "unsupported";
    case ErrorCode::Timeout: return "timeout";
    case ErrorCode::PeerLost: return "peer_lost";
    case ErrorCode::Aborted: return "aborted";
    case ErrorCode::Unauthorized: return "unauthorized";
    case ErrorCode::ProtocolMismatch: return "protocol_mismatch";
    case ErrorCode::CallMismatch: return "call_mismatch";
    case ErrorCode::CorruptData: return "corrupt_data";
    case ErrorCode::OutOfMemory: return "out_of_memory";
    case ErrorCode::NotFinite: return "not_finite";
    case ErrorCode::System: return "system";
    case ErrorCode::Internal: return "internal";
  }
  return "internal";
}

Error::Error(ErrorCode code, const std::string& message, std::optional<int> rank)
    : std::runtime_error(message), code_(code), rank_(rank) {}

// Not by std::system_category(), whose numbers on Windows are those of GetLastError().
Error system_error(const std::string& what, int number) {
  return system_error(what, std::error_code(number, std::generic_category()));
}

namespace {

/// A thread that cannot be started says no more than "Resource temporarily unavailable".
Error of_the_system(const std::system_error& error) {
  if (error.code() == std::errc::resource_unavailable_try_again) {
    return system_error("cannot start another thread", EAGAIN);
  }
  return {ErrorCode::System, std::string(error.what()) + advice_on(error.code())};
}

}  // namespace

Error to_error(const std::exception& exception) {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return *error;
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) {
    return {ErrorCode::OutOfMemory, "this process has no memory left"};
  }
  if (const auto* error = dynamic_cast<const std::system_error*>(&exception)) {
    return of_the_system(*error);
  }
  return {ErrorCode::Internal, exception.what()};
}

Error to_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& exception) {
    return to_error(exception);
  } catch (...) {
    return {ErrorCode::Internal, "an exception of no known type"};
  }
}

// In POSIX's words where it has some: what Windows' own text is encoded in depends on the machine.
Error system_error(const std::string& what, const std::error_code& cause) {
  return {ErrorCode::System,
          what + ": " + cause.default_error_condition().message() + advice_on(cause)};
}

}  // namespace bimetal
