#pragma once
// The one exception type of the project. Every failure that crosses a public interface is a
// bimetal::Error. It has a code that programs can switch on, a message that says what to do, and
// the rank of the process that caused it, if there is one. docs/errors.md lists each code with its
// usual causes and its exit status on the command line.

#include <cerrno>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "bimetal/base/wire.h"

namespace bimetal {

/// The kind of an Error's failure: docs/errors.md.
enum class ErrorCode {
  /// Valid, but this build or device cannot do it.
  /// A deadline passed; the peer may still be alive.
  /// A rank is gone: reset, killed, or unreachable.
  /// Another rank, or the user, ended the operation.
  /// A token is missing or wrong.
  /// The peer speaks another protocol version, or no Bimetal at all.
  /// Two ranks called different collectives, or with other counts or types.
  /// A file or frame fails its checks.
  /// A device or host allocation failed.
  /// NaN or infinity where numbers are needed.
  /// The operating system refused: file, socket, process.
  /// A broken invariant: a bug of ours.
  InvalidArgument,  ///< the caller passed something that can never work
  Unsupported,
  Timeout,
  PeerLost,
  Aborted,
  Unauthorized,
  ProtocolMismatch,
  CallMismatch,
  CorruptData,
  OutOfMemory,
  NotFinite,
  System,
  Internal,
};

/// Stable snake_case name of a code, e.g. "peer_lost"; used in reports and log lines.
std::string_view to_string(ErrorCode code) noexcept;

/// The library's one exception. A value.
class Error : public std::runtime_error {
 public:
  /// `rank`: the one that it is about, if it is about one.
  Error(ErrorCode code, const std::string& message, std::optional<int> rank = std::nullopt);

  /// A copy has a text of its own, so that it may go to another thread: copies of runtime_error
  /// count theirs together, which is right, but done where ThreadSanitizer does not see it.
  Error(const Error& other) : Error(other.code_, other.what(), other.rank_) {}
  Error(Error&&) = default;
  Error& operator=(const Error& other) { return *this = Error(other); }  ///< copies
  Error& operator=(Error&&) = default;

  ErrorCode code() const noexcept { return code_; }  ///< its kind

  /// The rank that the error is about (the lost peer, the one whose loss is NaN), if one is.
  std::optional<int> rank() const noexcept { return rank_; }

 private:
  ErrorCode code_;
  std::optional<int> rank_;
};

/// A System error from errno: "<what>: <its words>". Windows' own numbers are others
/// (unicode/utf8.h), and those of a std::error_code may be.
Error system_error(const std::string& what, int number);

// An Error as bytes, so that another process can throw it: u8 code, i32 rank (-1: none), its
// message as a string.

/// Writes at most `longest` bytes of the text.
inline void write_error(WireWriter& out, const Error& error,
                        std::size_t longest = std::string_view::npos) {
  out.u8(static_cast<std::uint8_t>(error.code()));
  out.i32(error.rank().value_or(-1));
  out.string(std::string_view(error.what()).substr(0, longest));
}

/// Reads all of `bytes`. A code that this release does not know becomes Internal.
/// Error(CorruptData) if they are no error.
inline Error read_error(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  const auto code = static_cast<ErrorCode>(in.u8());
  const auto rank = in.i32();
  const auto text = in.string();
  in.expect_end();
  return Error(code <= ErrorCode::Internal ? code : ErrorCode::Internal, text,
               rank >= 0 ? std::optional<int>(rank) : std::nullopt);
}

// Advice on errors of the operating system whose own message does not help, such as a limit that
// somebody has set.

/// On an errno. Follows the system's words, with a space before. Mostly empty.
inline const char* advice_on(int number) noexcept {
  switch (number) {
    case EMFILE: return " (a process may have no more of them here: see `ulimit -n`)";
    case ENFILE: return " (this machine may have no more of them)";
    case EAGAIN: return " (this user may have no more processes and threads: see `ulimit -u`)";
    default: return "";
  }
}

/// The same for any code: that of another category may have the number of an errno, and is none.
inline const char* advice_on(const std::error_code& code) noexcept {
  const auto condition = code.default_error_condition();
  return condition.category() == std::generic_category() ? advice_on(condition.value()) : "";
}

// Converts exceptions of any type, and other libraries' error codes, to the project's own.

/// An Error as it stands; else OutOfMemory for std::bad_alloc, System for std::system_error, and
/// Internal with the exception's words. `failure` holds one.
Error to_error(const std::exception_ptr& failure);
/// The same as an Error: Internal, or the exception's own code.
Error to_error(const std::exception& exception);

/// A System error from a code that says whose number it has, as std::filesystem's: "<what>: <its
/// words>". Its bare value is no errno everywhere: on Windows it may be one of GetLastError()'s.
Error system_error(const std::string& what, const std::error_code& cause);

}  // namespace bimetal
