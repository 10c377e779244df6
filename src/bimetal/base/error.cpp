#include "bimetal/base/error.h"

#include <system_error>

#include "bimetal/base/to_error.h"

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

}  // namespace bimetal
