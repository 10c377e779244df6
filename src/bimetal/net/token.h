#pragma once
// The job's shared secret. Held in memory that is wiped on release; never printed, never logged,
// never put on a command line. An empty token means "loopback only" (see require_token_for).

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::net {

/// A job's secret. Its memory is wiped when it goes.
class Token {
 public:
  Token() = default;
  ~Token();
  Token(const Token&) = default;
  Token& operator=(const Token& other);  ///< copies; the old contents are wiped

  /// 32 random bytes, as text of 64 hexadecimal digits.
  static Token generate();

  /// The first line of a file, without blanks around it and without a byte order mark of UTF-8.
  /// Errors: InvalidArgument if it is shorter than 16 characters, or longer than 4,095, or in
  /// UTF-16, or readable by other users (POSIX: mode & 077), with the chmod command that mends it;
  /// System if it can't be read.
  static Token from_file(const std::filesystem::path& path);

  /// From BIMETAL_TOKEN_FILE, else BIMETAL_TOKEN, else empty. Error(InvalidArgument) if it is
  /// shorter than a file's may be.
  static Token from_environment();

  /// The token with exactly these characters.
  static Token from_text(std::string_view text);

  bool empty() const noexcept { return secret_.empty(); }     ///< no token
  std::string_view text() const noexcept { return secret_; }  ///< the secret itself

 private:
  std::string secret_;
};

/// Throws Error(Unauthorized) when `host` is not loopback and `token` is empty: nothing listens
/// beyond loopback without a secret. System for a name that nobody knows.
void require_token_for(std::string_view host, const Token& token);

// Whether connections are encrypted. All processes of a job must agree; the handshake tells both
// sides if they don't.

/// Whether connections are encrypted.
enum class Encryption {
  /// Noise (net/noise.h): nobody between the two can read or change a byte.
  off,  ///< authenticated, but readable on the network
  on,
};

/// BIMETAL_ENCRYPTION: "on", "off", or unset for off. Throws Error(InvalidArgument) for anything
/// else.
Encryption encryption_from_environment();

/// Says in the log, as a warning and once per process, that a job's connections are readable on the
/// network, and how to change that. Not where `listen_host` is loopback. For the one process that
/// speaks for the job: rank 0, server 0. Thread-safe.
void note_if_plain(std::string_view listen_host, Encryption encryption);

}  // namespace bimetal::net
