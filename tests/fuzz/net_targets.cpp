// Targets of net: frames, the handshake, the encryption handshake, pairing.

#include <algorithm>
#include <array>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/net/discovery/shared_job.h"
#include "bimetal/net/frame.h"
#include "bimetal/net/handshake.h"
#include "bimetal/net/noise.h"
#include "bimetal/net/pairing/machines.h"
#include "bimetal/net/pairing/message.h"
#include "fuzz/targets.h"

namespace bimetal::fuzz {
namespace {

/// The first `size` bytes, zeros where there are fewer.
template <std::size_t size>
std::array<std::byte, size> head(Bytes bytes) {
  std::array<std::byte, size> out{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), size), out.begin());
  return out;
}

void decode(const net::EncodedHeader& bytes, Bytes payload) {
  net::Seal in(net::SessionKey{}), out(net::SessionKey{}), again(net::SessionKey{});
  try {
    const net::FrameHeader header = net::decode_header(bytes, in);
    promise(net::decode_header(net::encode_header(header, out), again) == header);
    net::check_payload(header, payload, in);
    promise(!header.sealed || header.payload_sum == in.sum_body(payload));
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::ProtocolMismatch || error.code() == ErrorCode::CorruptData);
  }
}

net::noise::Key some_key(std::byte fill) {
  net::noise::Key key;
  key.fill(fill);
  return key;
}

}  // namespace

void frame(Bytes bytes) {
  auto header = head<net::kFrameHeaderBytes>(bytes);
  const Bytes payload = bytes.subspan(std::min(bytes.size(), header.size()));
  decode(header, payload);
  // A stranger never gets further; a member of the job does.
  net::Seal seal(net::SessionKey{}), same(net::SessionKey{});
  const net::EncodedHeader good = net::encode_header({}, seal);
  std::copy_n(good.begin(), 6, header.begin());
  constexpr std::size_t kCovered = net::kFrameHeaderBytes - sizeof(std::uint64_t);
  const std::uint64_t sum = same.sum_next_head(std::span(header).first<kCovered>());
  for (std::size_t i = 0; i < sizeof(sum); ++i) {
    header[kCovered + i] = static_cast<std::byte>(sum >> (8 * i));
  }
  decode(header, payload);
}

void handshake(Bytes bytes) {
  const auto hello_bytes = head<net::kHelloBytes>(bytes);
  const net::Hello hello = net::decode_hello(hello_bytes);
  const net::Hello again = net::decode_hello(net::encode_hello(hello));
  promise(again.from_rank == hello.from_rank && again.to_rank == hello.to_rank &&
          again.job == hello.job && again.nonce == hello.nonce &&
          again.encrypted == hello.encrypted);
  net::decode_preamble(head<net::kPreambleBytes>(bytes));
  net::decode_reject(head<net::kRejectBytes>(bytes));
  const auto rest = bytes.subspan(std::min(bytes.size(), hello_bytes.size()));
  const auto challenge = head<net::kChallengeBytes>(rest);
  const auto proof = net::decode_proof(
      head<net::kProofBytes>(rest.subspan(std::min(rest.size(), challenge.size()))));
  // Nobody proves a token by chance.
  static const net::HandshakeKey key(net::Token::from_text("a token that the fuzzer has not"));
  const auto transcript = net::make_transcript(hello_bytes, challenge);
  promise(!net::same_proof(proof, key.client_proof(transcript)));
  promise(!net::same_proof(proof, key.server_proof(transcript)));
}

void noise(Bytes bytes) {
  using net::noise::Handshake;
  const net::noise::Key secret = some_key(std::byte{7});
  const auto refused = [&](Handshake& side) {
    try {
      side.read(bytes);
    } catch (const Error& error) {
      return error.code() == ErrorCode::Unauthorized;
    }
    return false;
  };
  Handshake responder(Handshake::Role::responder, secret, {}, some_key(std::byte{1}));
  promise(refused(responder));
  Handshake initiator(Handshake::Role::initiator, secret, {}, some_key(std::byte{2}));
  initiator.write();
  promise(refused(initiator));

  std::vector<std::byte> record(bytes.begin(), bytes.end());
  net::noise::CipherState cipher(secret);
  try {
    cipher.decrypt({}, record);
    promise(false);
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::CorruptData);
  }
}

void pairing_message(Bytes bytes) {
  using namespace net::pairing;
  const auto read_or_refused = [](auto action, ErrorCode code = ErrorCode::CorruptData) {
    try {
      action();
    } catch (const Error& error) {
      promise(error.code() == code);
    }
  };
  const auto comes_back = [&](const Body& again) { promise(std::ranges::equal(again, bytes)); };
  const auto whole = head<kHeadBytes>(bytes);
  read_or_refused([&] { promise(body_bytes(whole) <= kMaxBodyBytes); });
  read_or_refused([&] {
    const auto introduction = decode_introduction(bytes);
    promise(net::is_machine_name(introduction.name));
    comes_back(encode(introduction));
  });
  read_or_refused([&] { comes_back(encode(decode_refused(bytes))); });
  read_or_refused([&] { promise(encode(decode_grant(bytes)).size() == bytes.size()); });
  namespace discovery = net::discovery;
  const auto job =
      discovery::parse_txt_record({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  promise(discovery::printable(job.name) == job.name && job.addresses.size() <= 16);
  // Nobody confirms a key by chance, whatever point he sends.
  namespace cpace = net::cpace;
  cpace::Exchange exchange(cpace::Exchange::Role::responder, {"a code", {}, {}}, {},
                           some_key(std::byte{3}));
  read_or_refused(
      [&] {
        exchange.receive(head<cpace::kShareBytes>(bytes), bytes);
        promise(!exchange.confirms(head<sizeof(cpace::Tag)>(bytes)));
      },
      ErrorCode::Unauthorized);
}

}  // namespace bimetal::fuzz
