#include "bimetal/net/token.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/log.h"
#include "bimetal/base/unicode/utf8.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/noise.h"
#include "bimetal/net/tcp/dial.h"

namespace bimetal::net {
namespace {

constexpr std::size_t kTokenBytes = 32;
constexpr std::size_t kMinimumLength = 16;
constexpr std::size_t kMaximumLength = 4095;
constexpr std::chrono::seconds kLookUpTimeout{5};

void wipe(std::string& secret) {
  sodium_memzero(secret.data(), secret.size());
}

void require_private(const std::filesystem::path& path) {
#ifndef _WIN32
  using std::filesystem::perms;
  const auto mode = std::filesystem::status(path).permissions();
  if ((mode & (perms::group_all | perms::others_all)) != perms::none) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("token file {} is open to other users (mode {:03o}); run: chmod 600 {}",
                    path.string(), static_cast<unsigned>(mode & perms::all), path.string()));
  }
#endif
}

void require_length(std::size_t length, const std::string& of) {
  if (length > kMaximumLength) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("{} has more than {} characters, which is no token", of, kMaximumLength));
  }
  if (length >= kMinimumLength) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} has {} characters; a token needs at least {}: make one with `bimetal "
                          "token FILE` (or `openssl rand -hex 32`)",
                          of, length, kMinimumLength));
}

[[noreturn]] void refuse_utf16(const std::string& name) {
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("token file {} is in UTF-16, as PowerShell's > writes it; make it with "
                          "`bimetal token FILE`, or `bimetal token | Out-File -Encoding ascii "
                          "FILE`",
                          name));
}

std::string_view without_blanks(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const auto first = line.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace

Token::~Token() {
  wipe(secret_);
}

Token& Token::operator=(const Token& other) {
  std::string copy = other.secret_;
  secret_.swap(copy);
  wipe(copy);
  return *this;
}

Token Token::generate() {
  ensure_sodium();
  std::array<unsigned char, kTokenBytes> random;
  std::array<char, 2 * kTokenBytes + 1> text;
  randombytes_buf(random.data(), random.size());
  sodium_bin2hex(text.data(), text.size(), random.data(), random.size());
  Token token = from_text({text.data(), 2 * kTokenBytes});
  sodium_memzero(random.data(), random.size());
  sodium_memzero(text.data(), text.size());
  return token;
}

Token Token::from_file(const std::filesystem::path& path) {
  const std::string name = utf8_of_path(path);
  std::ifstream file(path);
  if (!file) throw system_error(fmt::format("cannot read token file {}", name), errno);
  require_private(path);
  // A buffer of fixed size, so that no reallocation leaves a copy of the secret behind.
  std::string line(kMaximumLength + 2, '\0');  // one more shows that it is too long
  file.getline(line.data(), static_cast<std::streamsize>(line.size()));
  const std::size_t length = std::char_traits<char>::length(line.data());
  const std::string_view text(line.data(), length);
  const bool utf16 = has_mark_of_utf16(text);
  Token token = from_text(without_blanks(without_byte_order_mark(text)));
  wipe(line);
  if (utf16) refuse_utf16(name);
  if (file.bad()) throw system_error(fmt::format("cannot read token file {}", name), errno);
  require_length(length > kMaximumLength ? length : token.secret_.size(),
                 fmt::format("the first line of token file {}", name));
  return token;
}

Token Token::from_environment() {
  const auto path = path_in_environment("BIMETAL_TOKEN_FILE");
  if (!path.empty()) return from_file(path);
  const char* text = std::getenv("BIMETAL_TOKEN");
  if (text == nullptr || *text == '\0') return {};
  Token token = from_text(text);
  require_length(token.secret_.size(), "the value of BIMETAL_TOKEN");
  return token;
}

Token Token::from_text(std::string_view text) {
  Token token;
  token.secret_ = text;
  return token;
}

void require_token_for(std::string_view host, const Token& token) {
  if (!token.empty() || is_loopback(host)) return;
  resolve_to_listen({std::string(host), 0}, Deadline::after(kLookUpTimeout));  // or it throws
  throw Error(ErrorCode::Unauthorized,
              fmt::format("{} is not a loopback address, and the job has no token: anyone on the "
                          "network could join. Make one with `bimetal token FILE`, copy it to "
                          "every machine, and pass --token-file FILE or set "
                          "BIMETAL_TOKEN_FILE=FILE for every process",
                          host));
}

Encryption encryption_from_environment() {
  const char* const variable = std::getenv("BIMETAL_ENCRYPTION");
  const std::string_view text = variable ? variable : "";
  if (text == "on") return Encryption::on;
  if (text.empty() || text == "off") return Encryption::off;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("BIMETAL_ENCRYPTION is '{}'; it must be 'on' or 'off'", text));
}

void note_if_plain(std::string_view listen_host, Encryption encryption) {
  if (encryption == Encryption::on || is_loopback(listen_host)) return;
  static std::once_flag once;
  std::call_once(once, [] {
    log(LogLevel::warning,
        "what this job sends over the network is authenticated, but not encrypted: whoever can "
        "read the network can read its data and its model. BIMETAL_ENCRYPTION=on (or --encrypt) on "
        "every machine encrypts it");
  });
}

}  // namespace bimetal::net
