#include "bimetal/monitor/pages.h"

#include <array>
#include <string_view>

#include "bimetal/net/noise.h"

namespace bimetal::monitor {
namespace {

constexpr std::string_view kPurpose = "bimetal monitor";

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

net::Token monitor_token(const net::Token& job) {
  if (job.empty()) return {};
  net::ensure_sodium();
  crypto_auth_hmacsha256_state state;
  std::array<unsigned char, crypto_auth_hmacsha256_BYTES> code;
  crypto_auth_hmacsha256_init(&state, bytes_of(job.text()), job.text().size());
  crypto_auth_hmacsha256_update(&state, bytes_of(kPurpose), kPurpose.size());
  crypto_auth_hmacsha256_final(&state, code.data());
  std::array<char, 2 * code.size() + 1> text;
  sodium_bin2hex(text.data(), text.size(), code.data(), code.size());
  auto token = net::Token::from_text({text.data(), text.size() - 1});
  sodium_memzero(&state, sizeof state);
  sodium_memzero(code.data(), code.size());
  sodium_memzero(text.data(), text.size());
  return token;
}

}  // namespace bimetal::monitor
