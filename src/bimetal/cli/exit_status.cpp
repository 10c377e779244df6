#include "bimetal/cli/exit_status.h"

namespace bimetal::cli {

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

}  // namespace bimetal::cli
