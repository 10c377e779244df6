#include "bimetal/net/tcp/authenticate.h"

#include <fmt/format.h>

#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>

#include "bimetal/base/error.h"
#include "bimetal/net/noise.h"
#include "bimetal/net/tcp/sockets.h"

namespace bimetal::net {

asio::awaitable<void> wait_for_hang_up(tcp::socket& socket) {
  constexpr int kPatience = 16;
  std::error_code error;
  socket.shutdown(tcp::socket::shutdown_send, error);
  std::array<std::byte, 512> discarded;
  for (int i = 0; i < kPatience && !error; ++i) {
    co_await socket.async_read_some(asio::buffer(discarded),
                                    asio::redirect_error(asio::use_awaitable, error));
  }
}

namespace {

std::string_view name_of(Service service) {
  switch (service) {
    case Service::Store: return "rendezvous store";
    case Service::Parameters: return "parameter server";
    case Service::Predictions: return "server of predictions";
    case Service::Pairing: return "shared job";
    case Service::Mesh: break;
  }
  return "rank of a mesh";
}

Error version_error(const std::string& who, std::uint16_t version) {
  return Error(ErrorCode::ProtocolMismatch,
               fmt::format("{} speaks protocol version {}, this side version {}; install the same "
                           "release of Bimetal on both",
                           who, version, kProtocolVersion));
}

Error not_bimetal(const std::string& who) {
  return Error(ErrorCode::ProtocolMismatch,
               fmt::format("{} is not Bimetal: its first bytes are something else's; check the "
                           "address and port",
                           who));
}

Error refused(const std::string& server, std::uint16_t reason, const Hello& hello) {
  switch (static_cast<Refusal>(reason)) {
    case Refusal::Token:
      return Error(ErrorCode::Unauthorized,
                   fmt::format("the job's token was refused by {}; give this process the same "
                               "token as the others (--token-file, BIMETAL_TOKEN_FILE)",
                               server));
    case Refusal::Job:
      return Error(ErrorCode::Unauthorized,
                   fmt::format("{} belongs to another job; check the address and port", server));
    case Refusal::Rank:
      return Error(ErrorCode::InvalidArgument,
                   fmt::format("{} refused rank {}: it is not rank {} of this job, or does not "
                               "expect rank {}; check that every process has its own rank",
                               server, hello.from_rank, hello.to_rank, hello.from_rank));
    case Refusal::Service:
      return Error(
          ErrorCode::ProtocolMismatch,
          fmt::format("{} is Bimetal, but no {}; check the port", server, name_of(hello.service)));
    case Refusal::Encryption:
      return Error(ErrorCode::InvalidArgument,
                   fmt::format("{} wants {} connections, but this process {} ones; set "
                               "BIMETAL_ENCRYPTION alike on every machine",
                               server, hello.encrypted ? "plain" : "encrypted",
                               hello.encrypted ? "encrypted" : "plain"));
    case Refusal::Version: break;  // told by the preamble's version before this is called
  }
  return Error(ErrorCode::ProtocolMismatch,
               fmt::format("{} refused the connection for a reason that this release does not "
                           "know ({})",
                           server, reason));
}

template <std::size_t size>
asio::awaitable<void> read_rest(tcp::socket& socket, std::array<std::byte, size>& message,
                                std::size_t have) {
  co_await asio::async_read(socket, asio::buffer(message.data() + have, size - have),
                            asio::use_awaitable);
}

template <std::size_t size>
asio::awaitable<void> write_all(tcp::socket& socket, std::array<std::byte, size> message) {
  co_await asio::async_write(socket, asio::buffer(message), asio::use_awaitable);
}

/// Reads a server's message of kind `expected`; a Reject or anything else is thrown.
template <std::size_t size>
asio::awaitable<std::array<std::byte, size>> read_from_server(tcp::socket& socket, Message expected,
                                                              const Hello& hello,
                                                              const std::string& server) {
  std::array<std::byte, size> message;
  const auto preamble_bytes = std::span(message).template first<kPreambleBytes>();
  co_await asio::async_read(socket, asio::buffer(preamble_bytes.data(), kPreambleBytes),
                            asio::use_awaitable);
  const Preamble preamble = decode_preamble(preamble_bytes);
  if (preamble.magic != kHandshakeMagic) throw not_bimetal(server);
  if (preamble.version != kProtocolVersion) throw version_error(server, preamble.version);
  if (preamble.message == Message::Reject) {
    std::array<std::byte, kRejectBytes> reject{};
    co_await read_rest(socket, reject, kPreambleBytes);
    throw refused(server, decode_reject(reject), hello);
  }
  if (preamble.message != expected) throw not_bimetal(server);
  co_await read_rest(socket, message, kPreambleBytes);
  co_return message;
}

asio::awaitable<void> reject(tcp::socket& socket, Service service, Refusal refusal) {
  std::error_code error;
  const auto message = encode_reject(service, refusal);
  co_await asio::async_write(socket, asio::buffer(message),
                             asio::redirect_error(asio::use_awaitable, error));
  co_await wait_for_hang_up(socket);
}

/// Reads a client's message of kind `expected`; anything else is refused and thrown.
template <std::size_t size>
asio::awaitable<std::array<std::byte, size>> read_from_client(tcp::socket& socket, Message expected,
                                                              Service service) {
  std::array<std::byte, size> message;
  const auto preamble_bytes = std::span(message).template first<kPreambleBytes>();
  co_await asio::async_read(socket, asio::buffer(preamble_bytes.data(), kPreambleBytes),
                            asio::use_awaitable);
  const Preamble preamble = decode_preamble(preamble_bytes);
  // Nothing is answered to a stranger: it would not understand.
  if (preamble.magic != kHandshakeMagic) throw not_bimetal("the client");
  if (preamble.version != kProtocolVersion) {
    co_await reject(socket, service, Refusal::Version);
    throw version_error("the client", preamble.version);
  }
  if (preamble.message != expected) throw not_bimetal("the client");
  if (preamble.service != service) {
    co_await reject(socket, service, Refusal::Service);
    throw AnotherService(fmt::format("the client expected a {}", name_of(preamble.service)));
  }
  co_await read_rest(socket, message, kPreambleBytes);
  co_return message;
}

/// Encrypts later messages, with keys that only the two of us have. `transcript` binds them to the
/// handshake before it.
asio::awaitable<noise::Handshake::Ciphers> agree_on_ciphers(tcp::socket& socket,
                                                            noise::Handshake::Role role,
                                                            const HandshakeKey& key,
                                                            const Transcript& transcript) {
  using noise::Handshake;
  noise::Key secret = key.encryption_secret();
  Handshake handshake(role, secret, transcript);
  sodium_memzero(secret.data(), secret.size());
  std::array<std::byte, Handshake::kMessageBytes> theirs;
  if (role == Handshake::Role::responder) {
    co_await asio::async_read(socket, asio::buffer(theirs), asio::use_awaitable);
    handshake.read(theirs);
  }
  const auto ours = handshake.write();
  co_await asio::async_write(socket, asio::buffer(ours), asio::use_awaitable);
  if (role == Handshake::Role::initiator) {
    co_await asio::async_read(socket, asio::buffer(theirs), asio::use_awaitable);
    handshake.read(theirs);
  }
  co_return handshake.split();
}

std::string_view why(Refusal refusal) {
  switch (refusal) {
    case Refusal::Encryption:
      return "one side wants encrypted connections and the other plain ones; set "
             "BIMETAL_ENCRYPTION alike on every machine";
    case Refusal::Job: return "the client belongs to another job";
    case Refusal::Rank: return "the client's rank is not expected here";
    case Refusal::Token: return "the client could not prove that it knows the job's token";
    case Refusal::Service: return "the client expected another service";
    case Refusal::Version: return "the client speaks another protocol version";
  }
  return "the client is not welcome";
}

}  // namespace

asio::awaitable<SessionKeys> authenticate_as_client(tcp::socket& socket, const HandshakeKey& key,
                                                    Hello hello, std::string server) {
  hello.nonce = fresh_nonce();
  const auto hello_bytes = encode_hello(hello);
  co_await write_all(socket, hello_bytes);
  const auto challenge =
      co_await read_from_server<kChallengeBytes>(socket, Message::Challenge, hello, server);
  const Transcript transcript = make_transcript(hello_bytes, challenge);
  const auto proof = encode_proof(Message::Proof, hello.service, key.client_proof(transcript));
  co_await write_all(socket, proof);
  const auto accept =
      co_await read_from_server<kProofBytes>(socket, Message::Accept, hello, server);
  if (!same_proof(decode_proof(accept), key.server_proof(transcript))) {
    throw Error(ErrorCode::Unauthorized,
                fmt::format("{} could not prove that it knows the job's token; it may be an "
                            "impostor: check the address",
                            server));
  }
  SessionKeys keys = key.session_keys(transcript);
  if (hello.encrypted) {
    keys.ciphers =
        co_await agree_on_ciphers(socket, noise::Handshake::Role::initiator, key, transcript);
  }
  co_return keys;
}

asio::awaitable<AuthenticatedClient> authenticate_as_server(tcp::socket& socket,
                                                            const HandshakeKey& key,
                                                            Service service, const Admit& admit) {
  const auto hello_bytes = co_await read_from_client<kHelloBytes>(socket, Message::Hello, service);
  const auto challenge = encode_challenge(service, fresh_nonce());
  co_await write_all(socket, challenge);
  const auto proof = co_await read_from_client<kProofBytes>(socket, Message::Proof, service);
  const Transcript transcript = make_transcript(hello_bytes, challenge);
  const Hello hello = decode_hello(hello_bytes);
  std::optional<Refusal> refusal;
  if (!same_proof(decode_proof(proof), key.client_proof(transcript))) {
    refusal = Refusal::Token;
  } else {
    refusal = admit(hello);
  }
  if (refusal) {
    co_await reject(socket, service, *refusal);
    const Error error(ErrorCode::Unauthorized, std::string(why(*refusal)));
    if (refusal == Refusal::Token) throw WrongToken(error);
    throw error;
  }
  const auto accept = encode_proof(Message::Accept, service, key.server_proof(transcript));
  co_await write_all(socket, accept);
  SessionKeys keys = key.session_keys(transcript);
  if (hello.encrypted) {
    keys.ciphers =
        co_await agree_on_ciphers(socket, noise::Handshake::Role::responder, key, transcript);
  }
  co_return AuthenticatedClient{hello, keys};
}

}  // namespace bimetal::net
