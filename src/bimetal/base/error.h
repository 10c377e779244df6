#pragma once
// The one exception type of the project. Every failure that crosses a public interface is a
// bimetal::Error. It has a code that programs can switch on, a message that says what to do, and
// the rank of the process that caused it, if there is one. docs/errors.md lists each code with its
// usual causes and its exit status on the command line.

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace bimetal {

enum class ErrorCode {
  InvalidArgument,   ///< the caller passed something that can never work
  Unsupported,       ///< valid, but this build or device cannot do it
  Timeout,           ///< a deadline passed; the peer may still be alive
  PeerLost,          ///< a rank is gone: reset, killed, or unreachable
  Aborted,           ///< another rank, or the user, ended the operation
  Unauthorized,      ///< a token is missing or wrong
  ProtocolMismatch,  ///< the peer speaks another protocol version, or no Bimetal at all
  CallMismatch,      ///< two ranks called different collectives, or with other counts or types
  CorruptData,       ///< a file or frame fails its checks
  OutOfMemory,       ///< a device or host allocation failed
  NotFinite,         ///< NaN or infinity where numbers are needed
  System,            ///< the operating system refused: file, socket, process
  Internal,          ///< a broken invariant: a bug of ours
};

/// Stable snake_case name of a code, e.g. "peer_lost"; used in reports and log lines.
std::string_view to_string(ErrorCode code) noexcept;

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, std::optional<int> rank = std::nullopt);

  /// A copy has a text of its own, so that it may go to another thread: copies of runtime_error
  /// count theirs together, which is right, but done where ThreadSanitizer does not see it.
  Error(const Error& other) : Error(other.code_, other.what(), other.rank_) {}
  Error(Error&&) = default;
  Error& operator=(const Error& other) { return *this = Error(other); }
  Error& operator=(Error&&) = default;

  ErrorCode code() const noexcept { return code_; }

  /// The rank that the error is about (the lost peer, the one whose loss is NaN), if one is.
  std::optional<int> rank() const noexcept { return rank_; }

 private:
  ErrorCode code_;
  std::optional<int> rank_;
};

/// A System error from errno: "<what>: <its words>". Windows' own numbers are others
/// (unicode/windows_text.h), and those of a std::error_code may be (to_error.h).
Error system_error(const std::string& what, int number);

}  // namespace bimetal
