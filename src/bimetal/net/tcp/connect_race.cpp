#include <fmt/format.h>

#include <algorithm>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <deque>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/net/tcp/sockets.h"

namespace bimetal::net {
namespace {

// RFC 8305's Connection Attempt Delay.
constexpr std::chrono::milliseconds kHeadStart{250};
// How long an attempt may go unanswered: enough for a SYN that gets lost twice.
constexpr std::chrono::milliseconds kPatience{5000};
// The same once another address has answered that nobody is there (yet): enough for one lost SYN.
constexpr std::chrono::milliseconds kShortPatience{2500};

/// A connection from a port to itself, which TCP makes when the free port that the system picks for
/// us happens to be the one we call and nobody listens there.
bool talks_to_itself(const tcp::socket& socket) {
  std::error_code error;
  const auto local = socket.local_endpoint(error);
  return !error && local == socket.remote_endpoint(error);
}

}  // namespace

/// Kept alive by the attempts that still run.
struct ConnectRace::State : std::enable_shared_from_this<State> {
  enum class Stage { waiting, connecting, connected, taken, failed };

  struct Attempt {
    tcp::endpoint address;
    Stage stage = Stage::waiting;
    std::optional<tcp::socket> socket{};
    std::string trouble{};
  };

  State(asio::any_io_executor given, const std::vector<tcp::endpoint>& addresses)
      : executor(std::move(given)), changed(executor, asio::steady_timer::time_point::max()) {
    for (const auto& address : addresses) attempts.push_back({address});
  }

  Attempt* first(Stage stage) {
    const auto found = std::find_if(attempts.begin(), attempts.end(),
                                    [stage](const Attempt& a) { return a.stage == stage; });
    return found == attempts.end() ? nullptr : &*found;
  }

  void start(Attempt& attempt);
  asio::awaitable<void> connect(Attempt& attempt, std::shared_ptr<State> self);
  void fail(Attempt& attempt, std::string trouble);
  void give_up_unanswered();

  asio::any_io_executor executor;
  std::deque<Attempt> attempts;  // their places never move
  asio::steady_timer changed;    // cancelled when an attempt ends
  Deadline next_start = Deadline::after({});
  Deadline unanswered = Deadline::after(kPatience);
  bool over = false;
};

void ConnectRace::State::start(Attempt& attempt) {
  attempt.stage = Stage::connecting;
  next_start = Deadline::after(kHeadStart);
  unanswered = Deadline::after(kPatience);
  try {
    attempt.socket.emplace(open_socket(executor, attempt.address.protocol()));
  } catch (const std::exception& error) {  // IPv6 may be switched off
    fail(attempt, error.what());
    return;
  }
  spawn(executor, connect(attempt, shared_from_this()),
        [self = shared_from_this(), &attempt](const Error& error) {
          self->fail(attempt, error.what());
          self->changed.cancel();
        });
}

asio::awaitable<void> ConnectRace::State::connect(Attempt& attempt, std::shared_ptr<State> self) {
  std::error_code error;
  co_await attempt.socket->async_connect(attempt.address,
                                         asio::redirect_error(asio::use_awaitable, error));
  if (over || attempt.stage != Stage::connecting) co_return;
  if (!error && talks_to_itself(*attempt.socket)) error = asio::error::connection_refused;
  if (error) {
    fail(attempt, error.message());
  } else {
    attempt.stage = Stage::connected;
  }
  changed.cancel();
}

/// The next in line needs no further wait.
void ConnectRace::State::fail(Attempt& attempt, std::string trouble) {
  attempt.stage = Stage::failed;
  attempt.trouble = std::move(trouble);
  std::error_code ignored;
  if (attempt.socket) attempt.socket->close(ignored);
  next_start = Deadline::after({});
  unanswered = min(unanswered, Deadline::after(kShortPatience));
}

void ConnectRace::State::give_up_unanswered() {
  while (Attempt* const attempt = first(Stage::connecting)) fail(*attempt, "no answer");
  while (Attempt* const attempt = first(Stage::waiting))
    fail(*attempt, "not tried: no time was left");
}

ConnectRace::ConnectRace(asio::any_io_executor executor, std::vector<tcp::endpoint> addresses)
    : state_(std::make_shared<State>(std::move(executor), addresses)) {}

ConnectRace::~ConnectRace() {
  state_->over = true;
  std::error_code ignored;
  for (auto& attempt : state_->attempts) {
    if (attempt.socket) attempt.socket->close(ignored);
  }
}

asio::awaitable<std::optional<ConnectRace::Winner>> ConnectRace::next(Deadline deadline) {
  const auto state = state_;
  using Stage = State::Stage;
  for (;;) {
    if (auto* const winner = state->first(Stage::connected)) {
      winner->stage = Stage::taken;
      tcp::socket socket = std::move(*winner->socket);
      winner->socket.reset();
      co_return Winner{winner->address, std::move(socket)};
    }
    auto* const waiting = state->first(Stage::waiting);
    if (!waiting && !state->first(Stage::connecting)) co_return std::nullopt;
    if (waiting && state->next_start.expired()) {
      state->start(*waiting);
      continue;
    }
    const Deadline end = waiting ? deadline : min(deadline, state->unanswered);
    if (end.expired()) {
      state->give_up_unanswered();
      co_return std::nullopt;
    }
    std::error_code woken;
    state->changed.expires_at((waiting ? min(end, state->next_start) : end).time());
    co_await state->changed.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
}

void ConnectRace::reject(const tcp::endpoint& address, std::string why) {
  state_->next_start = Deadline::after({});
  for (auto& attempt : state_->attempts) {
    if (attempt.address == address) attempt.trouble = why;
  }
}

std::string ConnectRace::troubles() const {
  if (state_->attempts.size() == 1) return state_->attempts.front().trouble;
  std::string all;
  for (const auto& attempt : state_->attempts) {
    all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", to_string(to_endpoint(attempt.address)),
                       attempt.trouble);
  }
  return all;
}

}  // namespace bimetal::net
