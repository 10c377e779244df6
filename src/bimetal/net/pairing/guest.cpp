#include <fmt/format.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/net/pairing/code.h"
#include "bimetal/net/pairing/exchange.h"
#include "bimetal/net/pairing/pairing.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/tcp_mesh_impl.h"

namespace bimetal::net::pairing {
namespace {

constexpr std::chrono::milliseconds kTryAgainAfter{250};
constexpr std::chrono::seconds kUntilTold{2};
constexpr std::chrono::seconds kAnswerPatience{10};

/// One connection, whose introductions are over.
struct Conversation {
  Introduction host{};
  Transcript transcript{};
};

/// The outcome of one connection: an admission, or a request for a code.
struct Outcome {
  bool shared = true;  ///< false: a port of Bimetal that lets nobody in by a code
  std::optional<Admission> admission{};
  std::string complaint{};  ///< on the code that was tried
};

class Guest {
 public:
  explicit Guest(const GuestOptions& options)
      : options_(options), name_(options.machines.own_name()) {}

  std::optional<Admission> join() {
    for (std::optional<std::string> code = options_.code;;) {
      auto outcome = run(code ? parse_code(*code) : "");
      if (!outcome.shared) return std::nullopt;
      if (outcome.admission) return std::move(outcome.admission);
      code = options_.ask_code ? options_.ask_code(host_, outcome.complaint) : std::nullopt;
      if (code) continue;
      throw Error(ErrorCode::Unauthorized,
                  outcome.complaint.empty() ? fmt::format("{} wants the code that it shows", host_)
                                            : outcome.complaint);
    }
  }

 private:
  Outcome run(const std::string& code) {
    asio::io_context io{1};
    Outcome outcome;
    std::exception_ptr failure;
    asio::co_spawn(io, talk(code, outcome),
                   [&](const std::exception_ptr& thrown) { failure = thrown; });
    io.run();
    if (failure) std::rethrow_exception(failure);
    return outcome;
  }

  asio::awaitable<void> talk(std::string code, Outcome& outcome) {
    auto found = co_await connect();
    auto& socket = found.socket;
    Watchdog watchdog(socket, Deadline::after(kAnswerPatience));
    try {
      Conversation conversation;
      outcome.shared = co_await introduce(socket, conversation);
      if (!outcome.shared) co_return;
      const auto key = options_.machines.find(host_);
      if (key) {
        outcome.admission = co_await show_key(socket, conversation, *key);
      } else if (code.empty()) {
        outcome.complaint = co_await ask_for_code(socket);
      } else {
        outcome.admission = co_await show_code(socket, conversation, code, outcome.complaint);
      }
    } catch (const std::system_error& error) {
      throw Error(ErrorCode::PeerLost,
                  fmt::format("{} hung up, or did not answer in time: {}; is something between "
                              "these machines that cuts connections?",
                              options_.place, error.code().message()));
    }
    if (outcome.admission) {
      outcome.admission->store = {found.address.address().to_string(),
                                  outcome.admission->grant.port};
      outcome.admission->host = host_;
    }
  }

  /// Tries again until the deadline: the host may start later.
  asio::awaitable<ConnectRace::Winner> connect() {
    const auto executor = co_await asio::this_coro::executor;
    asio::steady_timer timer(executor);
    const auto tell_at = Deadline::after(kUntilTold);
    std::string trouble = "no time was left";
    for (bool told = false; !options_.deadline.expired();) {
      std::vector<tcp::endpoint> addresses;
      for (const auto& address : options_.addresses) {
        try {
          const auto some = co_await resolve(address, options_.deadline);
          addresses.insert(addresses.end(), some.begin(), some.end());
        } catch (const std::system_error& error) {
          trouble = error.code().message();
        }
      }
      if (!addresses.empty()) {
        ConnectRace race(executor, addresses);
        if (auto winner = co_await race.next(options_.deadline)) co_return std::move(*winner);
        trouble = race.troubles();
      }
      if (!told && tell_at.expired() && options_.say) {
        options_.say(fmt::format("nobody answers at {} yet: the job has not begun, or has ended",
                                 options_.place));
        told = true;
      }
      timer.expires_at(min(options_.deadline, Deadline::after(kTryAgainAfter)).time());
      co_await timer.async_wait(asio::use_awaitable);
    }
    throw Error(ErrorCode::Timeout,
                fmt::format("{} could not be reached in time (last try: {}); check that the job "
                            "runs there with --share, that both machines are in one network, and "
                            "that no firewall is in the way",
                            options_.place, trouble));
  }

  /// False where the port lets nobody in by a code.
  asio::awaitable<bool> introduce(tcp::socket& socket, Conversation& conversation) {
    Introduction self{options_.release, name_, {}};
    ensure_sodium();
    randombytes_buf(self.nonce.data(), self.nonce.size());
    auto hello = encode(self);
    co_await send(socket, Kind::Hello, hello);
    auto answer = co_await receive(socket);
    require_bimetal(answer.preamble, options_.place);
    if (answer.kind() != Kind::Welcome) co_return false;
    conversation.host = decode_introduction(answer.body);
    host_ = conversation.host.name;
    if (conversation.host.release != options_.release) {
      throw Error(ErrorCode::ProtocolMismatch,
                  fmt::format("{} runs Bimetal {} and this machine {}; install the same version on "
                              "both",
                              host_, conversation.host.release, options_.release));
    }
    conversation.transcript = make_transcript(std::move(hello), std::move(answer.body));
    co_return true;
  }

  /// The next message of that kind. Another one is thrown.
  asio::awaitable<Body> expect(tcp::socket& socket, Kind kind, std::size_t least = 0) {
    auto message = co_await receive(socket);
    require_bimetal(message.preamble, options_.place);
    if (message.kind() == Kind::Refused) throw refusal(decode_refused(message.body));
    if (message.kind() == kind && message.body.size() >= least) co_return std::move(message.body);
    throw Error(ErrorCode::CorruptData,
                fmt::format("{} says what makes no sense here", options_.place));
  }

  Error refusal(const Refused& refused) const {
    const auto error = [](const std::string& text) { return Error(ErrorCode::Unauthorized, text); };
    switch (refused.reason) {
      case Reason::wrong_code:
        return error(fmt::format(
            "that is not the code that {} shows now, or somebody is in between; {}", host_,
            refused.number > 0 ? fmt::format("{} tries are left", refused.number)
                               : "it is good for nobody any more: try again in two minutes"));
      case Reason::no_code:
        return error(
            refused.number > 0
                ? fmt::format("the code of {} was tried wrongly too often: in {} s it shows a new "
                              "one to whoever asks by bimetal join",
                              host_, refused.number)
                : fmt::format("the code is good no more: one is good for two minutes and one "
                              "machine; type the one that {} shows now",
                              host_));
      case Reason::unknown:
        return error(fmt::format(
            "this machine remembers {}, which does not remember it: it has forgotten this machine, "
            "or was installed anew, or something else answers at {}. If you know why: bimetal "
            "machines forget {}, and join again with its code",
            host_, options_.place, host_));
      case Reason::key: break;
    }
    return error(fmt::format(
        "{} remembers a machine called {} with another key: this one was installed anew, or has "
        "forgotten {}, or these are two. Type there: bimetal machines forget {}; or, if they are "
        "two, give one another name (~/.config/bimetal/name). Then join again with the code",
        host_, name_, host_, name_));
  }

  asio::awaitable<std::string> ask_for_code(tcp::socket& socket) {
    co_await send(socket, Kind::AskCode, {});
    co_await expect(socket, Kind::Shown);
    co_return std::string();
  }

  asio::awaitable<std::optional<Admission>> show_code(tcp::socket& socket,
                                                      const Conversation& conversation,
                                                      const std::string& code,
                                                      std::string& complaint) {
    const auto& transcript = conversation.transcript;
    cpace::Exchange exchange(cpace::Exchange::Role::initiator, code_inputs(code, transcript),
                             transcript.hello);
    cpace::Share share;
    cpace::Tag tag;
    Body grant;
    try {
      co_await send(socket, Kind::Share, Body(exchange.share().begin(), exchange.share().end()));
      const auto theirs = co_await expect(socket, Kind::Share, share.size());
      std::copy_n(theirs.begin(), share.size(), share.begin());
      exchange.receive(share, transcript.welcome);
      const auto own = exchange.tag();
      co_await send(socket, Kind::Confirm, Body(own.begin(), own.end()));
      grant = co_await expect(socket, Kind::Grant, tag.size() + noise::kTagBytes);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Unauthorized) throw;
      complaint = error.what();
      co_return std::nullopt;
    }
    std::copy_n(grant.begin(), tag.size(), tag.begin());
    if (!exchange.confirms(tag)) throw impostor("the code");
    const auto opened =
        grant_cipher(exchange.session_key()).decrypt({}, std::span(grant).subspan(tag.size()));
    Admission admission{.grant = decode_grant(opened), .store = {}, .host = {}};
    sodium_memzero(grant.data(), grant.size());
    try {
      options_.machines.remember(host_, machine_key(exchange.session_key()));
    } catch (const Error& error) {
      if (options_.say) {
        options_.say(fmt::format("{} is not remembered, and will ask for a code again: {}", host_,
                                 error.what()));
      }
    }
    co_return admission;
  }

  asio::awaitable<std::optional<Admission>> show_key(tcp::socket& socket,
                                                     const Conversation& conversation,
                                                     const noise::Key& key) {
    using noise::Handshake;
    Handshake handshake(Handshake::Role::initiator, key, conversation.transcript.prologue());
    co_await send(socket, Kind::Known, handshake.write());
    const auto answer = co_await expect(socket, Kind::Grant, Handshake::kMessageBytes);
    Admission admission;
    try {
      auto grant = handshake.read(answer);
      admission.grant = decode_grant(grant);
      sodium_memzero(grant.data(), grant.size());
    } catch (const Error&) {
      throw impostor("the key that this machine remembers");
    }
    admission.remembered = true;
    co_return admission;
  }

  Error impostor(std::string_view secret) const {
    return {ErrorCode::Unauthorized,
            fmt::format("what answers at {} and calls itself {} does not know {}: it is an "
                        "impostor, or somebody is in between. Nothing was told to it",
                        options_.place, host_, secret)};
  }

  const GuestOptions& options_;
  const std::string name_;
  std::string host_;  ///< as it calls itself
};

}  // namespace

std::optional<Admission> join(const GuestOptions& options) {
  return Guest(options).join();
}

}  // namespace bimetal::net::pairing
