#include "bimetal/net/pairing/message.h"

#include <algorithm>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/net/pairing/machines.h"

namespace bimetal::net::pairing {
namespace {

constexpr std::string_view kChannel = "bimetal pairing 1";
constexpr std::string_view kGrantLabel = "bimetal grant";
constexpr std::string_view kMachineLabel = "bimetal machine";
constexpr std::size_t kMaxReleaseLength = 64;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// BLAKE2b of a label under the exchange's key.
noise::Key derive(const cpace::SessionKey& key, std::string_view label) {
  static_assert(sizeof(cpace::SessionKey) <= crypto_generichash_KEYBYTES_MAX);
  noise::Key out;
  crypto_generichash(reinterpret_cast<unsigned char*>(out.data()), out.size(),
                     reinterpret_cast<const unsigned char*>(label.data()), label.size(),
                     reinterpret_cast<const unsigned char*>(key.data()), key.size());
  return out;
}

bool is_release(std::string_view text) {
  return !text.empty() && text.size() <= kMaxReleaseLength &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorCode::CorruptData, std::string("a machine has sent ") + what);
}

}  // namespace

std::vector<std::byte> encode(Kind kind, std::span<const std::byte> body) {
  WireWriter out;
  out.u32(kHandshakeMagic);
  out.u16(kProtocolVersion);
  out.u8(static_cast<std::uint8_t>(kind));
  out.u8(static_cast<std::uint8_t>(Service::Pairing));
  out.u16(static_cast<std::uint16_t>(body.size()));
  out.raw(body);
  return std::move(out).take();
}

std::size_t body_bytes(std::span<const std::byte, kHeadBytes> head) {
  const std::size_t bytes = WireReader(head.subspan<kPreambleBytes>()).u16();
  if (bytes > kMaxBodyBytes) refuse("a message that is too long");
  return bytes;
}

Body encode(const Introduction& introduction) {
  WireWriter out;
  out.string(introduction.release);
  out.string(introduction.name);
  out.raw(introduction.nonce);
  return std::move(out).take();
}

Introduction decode_introduction(std::span<const std::byte> body) {
  WireReader in(body);
  Introduction introduction;
  introduction.release = in.string();
  introduction.name = in.string();
  const auto nonce = in.raw(introduction.nonce.size());
  std::ranges::copy(nonce, introduction.nonce.begin());
  in.expect_end();
  if (!is_release(introduction.release)) refuse("a release that is none");
  if (!is_machine_name(introduction.name)) refuse("a name that is none");
  return introduction;
}

Body encode(const Refused& refused) {
  WireWriter out;
  out.u8(static_cast<std::uint8_t>(refused.reason));
  out.u32(refused.number);
  return std::move(out).take();
}

Refused decode_refused(std::span<const std::byte> body) {
  WireReader in(body);
  Refused refused;
  refused.reason = static_cast<Reason>(in.u8());
  refused.number = in.u32();
  in.expect_end();
  if (refused.reason < Reason::no_code || refused.reason > Reason::key) {
    refuse("a reason of another release");
  }
  return refused;
}

Body encode(const Grant& grant) {
  WireWriter out;
  out.u16(grant.port);
  out.u8(grant.encrypted ? 1 : 0);
  out.string(grant.token.text());
  return std::move(out).take();
}

Grant decode_grant(std::span<const std::byte> body) {
  WireReader in(body);
  Grant grant;
  grant.port = in.u16();
  grant.encrypted = in.u8() != 0;
  auto token = in.string();
  in.expect_end();
  grant.token = Token::from_text(token);
  sodium_memzero(token.data(), token.size());
  return grant;
}

Body Transcript::prologue() const {
  return cpace::lv_cat({bytes_of(kChannel), hello, welcome});
}

Transcript make_transcript(Body hello, Body welcome) {
  Transcript transcript{std::move(hello), std::move(welcome), {}};
  for (const auto* body : {&transcript.hello, &transcript.welcome}) {
    const auto nonce = decode_introduction(*body).nonce;
    transcript.session.insert(transcript.session.end(), nonce.begin(), nonce.end());
  }
  return transcript;
}

cpace::Inputs code_inputs(std::string_view code, const Transcript& transcript) {
  return {code, bytes_of(kChannel), transcript.session};
}

noise::CipherState grant_cipher(const cpace::SessionKey& key) {
  return noise::CipherState(derive(key, kGrantLabel));
}

noise::Key machine_key(const cpace::SessionKey& key) {
  return derive(key, kMachineLabel);
}

}  // namespace bimetal::net::pairing
