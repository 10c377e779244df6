#include <fmt/format.h>

#include <array>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/net/pairing/exchange.h"
#include "bimetal/net/pairing/pairing.h"
#include "bimetal/net/tcp/authenticate.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/net/tcp/listener.h"
#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/tcp_mesh_impl.h"

namespace bimetal::net::pairing {
namespace {

constexpr std::size_t kMaxConnections = 32;
// No human is waited for within it.
constexpr std::chrono::seconds kPatience{10};

std::array<std::byte, 16> fresh_session_nonce() {
  std::array<std::byte, 16> nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

/// Without the port, which means nothing to people.
std::string address_of(const tcp::socket& socket) {
  std::error_code error;
  const auto remote = socket.remote_endpoint(error);
  return error ? "an unknown address" : remote.address().to_string();
}

}  // namespace

struct Host::Impl {
  explicit Impl(HostOptions given)
      : options(std::move(given)),
        name(options.machines.own_name()),
        acceptor(open_acceptor(io.get_executor(),
                               resolve_to_listen(options.listen, Deadline::after(kPatience)))),
        bound(to_endpoint(acceptor.local_endpoint())),
        first_code(*codes.renew(options.now())) {
    spawn(io, accept_each(acceptor, [this](tcp::socket socket) { take(std::move(socket)); }),
          [](const Error& error) {
            log(LogLevel::error, "nobody can join any more: {}", error.what());
          });
    thread = std::thread([this] {
      run_handlers(io, [](const Error& error) {
        log(LogLevel::error, "a machine that wants to join gets no answer: {}", error.what());
      });
    });
  }

  ~Impl() {
    asio::post(io, [this] {
      std::error_code ignored;
      acceptor.close(ignored);
      guests.close_all();
    });
    thread.join();
  }

  void take(tcp::socket socket) {
    const auto from = address_of(socket);
    spawn(io, serve(guests.admit(std::move(socket))), [this, from](const Error& error) {
      const auto text = fmt::format("{} wanted to join: {}", from, error.what());
      // A key of this machine's that cannot be used is for its user to mend.
      if (error.code() == ErrorCode::InvalidArgument) return options.say(text);
      log(LogLevel::info, "{}", text);
    });
  }

  asio::awaitable<void> serve(Newcomers::Socket socket) {
    std::exception_ptr failure;
    {
      Watchdog watchdog(*socket, Deadline::after(kPatience));
      try {
        co_await answer(*socket);
        co_await wait_for_hang_up(*socket);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    guests.remove(socket);
    if (failure) std::rethrow_exception(failure);
  }

  asio::awaitable<void> reject(tcp::socket& socket, Service service, Refusal why) {
    const auto message = encode_reject(service, why);
    co_await asio::async_write(socket, asio::buffer(message), asio::use_awaitable);
  }

  asio::awaitable<void> refuse(tcp::socket& socket, Reason reason, std::int64_t number = 0) {
    co_await send(socket, Kind::Refused, encode(Refused{reason, static_cast<uint32_t>(number)}));
  }

  asio::awaitable<void> answer(tcp::socket& socket) {
    auto hello = co_await receive(socket);
    // A client that is not Bimetal gets no answer: it would not understand.
    if (hello.preamble.magic == kHandshakeMagic && hello.preamble.version != kProtocolVersion) {
      co_await reject(socket, Service::Pairing, Refusal::Version);
    }
    require_bimetal(hello.preamble, "the guest");
    if (hello.preamble.service != Service::Pairing) {
      co_await reject(socket, hello.preamble.service, Refusal::Service);
      co_return;
    }
    if (hello.kind() != Kind::Hello) co_return;
    const auto guest = decode_introduction(hello.body);
    auto welcome = encode(Introduction{options.release, name, fresh_session_nonce()});
    co_await send(socket, Kind::Welcome, welcome);
    const auto transcript = make_transcript(std::move(hello.body), std::move(welcome));
    const auto request = co_await receive(socket);
    switch (request.kind()) {
      case Kind::AskCode: co_return co_await show_code(socket);
      case Kind::Share: co_return co_await try_code(socket, guest.name, transcript, request.body);
      case Kind::Known: co_return co_await try_key(socket, guest.name, transcript, request.body);
      default: co_return;
    }
  }

  void renew_code(const tcp::socket& socket) {
    if (const auto code = codes.renew(options.now())) options.show_code(*code, address_of(socket));
  }

  asio::awaitable<void> show_code(tcp::socket& socket) {
    renew_code(socket);
    const auto now = options.now();
    if (codes.good(now)) {
      co_await send(socket, Kind::Shown, {});
    } else {
      co_await refuse(socket, Reason::no_code, codes.until_next(now).count());
    }
  }

  asio::awaitable<void> try_code(tcp::socket& socket, std::string guest,
                                 const Transcript& transcript, Body body) {
    const auto good = codes.good(options.now());
    if (!good) {
      renew_code(socket);
      co_return co_await refuse(socket, Reason::no_code, codes.until_next(options.now()).count());
    }
    cpace::Share share;
    if (body.size() != share.size()) co_return;
    std::ranges::copy(body, share.begin());
    cpace::Exchange exchange(cpace::Exchange::Role::responder, code_inputs(good->code, transcript),
                             transcript.welcome);
    exchange.receive(share, transcript.hello);
    co_await send(socket, Kind::Share, Body(exchange.share().begin(), exchange.share().end()));
    const auto confirm = co_await receive(socket);
    cpace::Tag tag;
    if (confirm.kind() != Kind::Confirm || confirm.body.size() != tag.size()) co_return;
    std::ranges::copy(confirm.body, tag.begin());
    // Others may have tried meanwhile. Nothing is awaited between this and the verdict.
    const auto now = options.now();
    const auto still = codes.good(now);
    if (!still || still->number != good->number) {
      co_return co_await refuse(socket, Reason::no_code, codes.until_next(now).count());
    }
    if (!exchange.confirms(tag)) {
      const int left = codes.wrong(good->number);
      options.say(fmt::format("{} has tried a wrong code; {}", address_of(socket),
                              left > 0 ? fmt::format("{} tries are left", left)
                                       : "this code is good for nobody any more"));
      co_return co_await refuse(socket, Reason::wrong_code, left);
    }
    codes.use(good->number, now);
    co_await let_in(socket, guest, exchange);
  }

  /// Remembers a machine that has proved the code, unless its name is another one's.
  asio::awaitable<void> let_in(tcp::socket& socket, std::string guest,
                               const cpace::Exchange& exchange) {
    const auto key = machine_key(exchange.session_key());
    bool changed = false;
    try {
      changed = options.machines.find(guest).has_value();
      if (!changed) options.machines.remember(guest, key);
    } catch (const Error& error) {
      options.say(fmt::format("{} will need a code again: {}", guest, error.what()));
    }
    if (changed) {
      options.say(fmt::format(
          "refused {}: this machine remembers one of that name with another key. If it was "
          "installed anew: bimetal machines forget {}. If these are two: give one another name "
          "(~/.config/bimetal/name)",
          guest, guest));
      co_return co_await refuse(socket, Reason::key);
    }
    const auto tag = exchange.tag();
    auto grant = encode(options.grant);
    Body body(tag.size() + grant.size() + noise::kTagBytes);
    std::ranges::copy(tag, body.begin());
    grant_cipher(exchange.session_key()).encrypt({}, grant, body.data() + tag.size());
    sodium_memzero(grant.data(), grant.size());
    co_await send(socket, Kind::Grant, std::move(body));
    options.say(fmt::format("{} was let in by the code", guest));
  }

  asio::awaitable<void> try_key(tcp::socket& socket, std::string guest,
                                const Transcript& transcript, Body message) {
    using noise::Handshake;
    const auto key = options.machines.find(guest);
    if (!key) co_return co_await refuse(socket, Reason::unknown);
    Handshake handshake(Handshake::Role::responder, *key, transcript.prologue());
    bool proved = false;
    try {
      handshake.read(message);
      proved = true;
    } catch (const Error&) {
      // Told below: a coroutine cannot wait in here.
    }
    if (!proved) {
      options.say(
          fmt::format("refused a machine at {} that calls itself {}: it has not the key of "
                      "the one that this machine remembers; if that was installed anew: "
                      "bimetal machines forget {}",
                      address_of(socket), guest, guest));
      co_return co_await refuse(socket, Reason::key);
    }
    auto grant = encode(options.grant);
    auto answer = handshake.write(grant);
    sodium_memzero(grant.data(), grant.size());
    co_await send(socket, Kind::Grant, std::move(answer));
    options.say(fmt::format("{} was let in: this machine remembers it", guest));
  }

  HostOptions options;
  const std::string name;
  asio::io_context io{1};
  CodeIssuer codes;
  Newcomers guests{kMaxConnections};
  tcp::acceptor acceptor;
  const Endpoint bound;
  const std::string first_code;
  std::thread thread;
};

Host::Host(HostOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Host::~Host() = default;

Endpoint Host::endpoint() const {
  return impl_->bound;
}

const std::string& Host::first_code() const {
  return impl_->first_code;
}

}  // namespace bimetal::net::pairing
