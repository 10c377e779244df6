#include "bimetal/serving/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <atomic>
#include <list>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/log.h"
#include "bimetal/net/tcp/listener.h"
#include "bimetal/serving/recorder.h"
#include "bimetal/serving/session.h"

namespace bimetal::serving {
namespace {

using Clock = std::chrono::steady_clock;

/// How often the computing thread looks whether it is to end.
constexpr std::chrono::milliseconds kLookForTheEnd{100};
/// For clients to read that the server ends.
constexpr std::chrono::milliseconds kToSayGoodbye{300};

ModelFacts checked(ModelFacts facts) {
  if (most_samples(facts, comm::DType::float64) >= 1) return facts;
  throw Error(
      ErrorCode::Unsupported,
      fmt::format("a sample of the model '{}' ({}x{}x{}, {} classes) does not fit a request "
                  "of {} MiB",
                  facts.model, facts.channels, facts.height, facts.width, facts.classes,
                  kMaxRequestBytes >> 20));
}

Error as_served_error(const std::exception& failure) {
  if (const auto* error = dynamic_cast<const Error*>(&failure)) return *error;
  const bool memory = dynamic_cast<const std::bad_alloc*>(&failure) != nullptr;
  const std::string text = failure.what();
  return Error(
      memory ? ErrorCode::OutOfMemory : ErrorCode::Internal,
      fmt::format("the server could not compute this: {}", text.substr(0, text.find('\n'))));
}

}  // namespace

struct Server::Impl final : SessionOwner {
  Impl(const ServerOptions& given, Model& served)
      : options(given),
        model(served),
        model_facts(checked(served.facts())),
        waiting(options.batching),
        listener(io, options.listen, listener_options()),
        bound(listener.endpoint()),
        work(io.get_executor()),
        io_thread([this] { move_bytes(); }),
        compute_thread([this] { compute(); }) {}
  ~Impl() override;

  net::ListenerOptions listener_options();
  void take(asio::ip::tcp::socket socket, const net::AuthenticatedClient& client);
  void move_bytes() noexcept;
  asio::awaitable<void> tick_loop();
  void count_clients();
  void stop_serving();

  void compute();
  void answer(const Batch& batch);
  void fail(const Batch& batch, const Error& why);

  // SessionOwner
  const ModelFacts& facts() const override { return model_facts; }
  Batcher& batcher() override { return waiting; }
  Figures figures() const override { return recorder.figures(); }
  void on_refused() override { recorder.refused(); }
  void post(std::function<void()> action) override { asio::post(io, std::move(action)); }
  void on_ended(const Session& session, const std::string& why) override;

  const ServerOptions options;
  Model& model;
  const ModelFacts model_facts;
  Batcher waiting;
  Recorder recorder;
  std::atomic<bool> stopping{false};
  asio::io_context io{1};
  std::list<std::shared_ptr<Session>> sessions;  ///< also those that are told why they end
  std::uint64_t sessions_so_far = 0;
  asio::steady_timer timer{io};
  net::Listener listener;
  const net::Endpoint bound;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::thread io_thread, compute_thread;
};

// ---- the I/O thread -----------------------------------------------------------------------------

net::ListenerOptions Server::Impl::listener_options() {
  net::ListenerOptions listening;
  listening.token = options.token;
  listening.service = net::Service::Predictions;
  listening.admit = [encrypted = options.encryption == net::Encryption::on](
                        const net::Hello& hello) -> std::optional<net::Refusal> {
    if (hello.encrypted != encrypted) return net::Refusal::Encryption;
    return std::nullopt;
  };
  listening.on_connection = [this](asio::ip::tcp::socket socket,
                                   const net::AuthenticatedClient& client) {
    take(std::move(socket), client);
  };
  return listening;
}

void Server::Impl::move_bytes() noexcept {
  try {
    listener.start();
    asio::co_spawn(io, tick_loop(), asio::detached);
    io.run();
  } catch (const std::exception& error) {
    log(LogLevel::error, "predictions are served no more: {}", error.what());
  }
}

void Server::Impl::take(asio::ip::tcp::socket socket, const net::AuthenticatedClient& client) {
  auto session =
      std::make_shared<Session>(std::move(socket), client.keys, ++sessions_so_far, *this);
  const auto here = std::ranges::count_if(sessions, [](const auto& s) { return s->serves(); });
  sessions.push_back(session);
  log(LogLevel::info, "predictions: client {} has come from {}", session->number(),
      session->remote());
  std::optional<Error> refusal;
  if (static_cast<std::size_t>(here) >= options.max_clients) {
    refusal = Error(ErrorCode::Aborted,
                    fmt::format("the server is busy: it has {} clients already", here));
  }
  session->start(refusal);
  count_clients();
}

void Server::Impl::on_ended(const Session& session, const std::string& why) {
  log(LogLevel::info, "predictions: client {} from {} is gone: {}", session.number(),
      session.remote(), why);
  waiting.forget([&](const Request& request) { return request.client == session.number(); });
  count_clients();
}

void Server::Impl::count_clients() {
  const auto here = std::ranges::count_if(sessions, [](const auto& s) { return s->serves(); });
  waiting.set_clients(static_cast<std::size_t>(here));
  recorder.set_clients(static_cast<std::size_t>(here));
}

asio::awaitable<void> Server::Impl::tick_loop() {
  while (!stopping) {
    std::erase_if(sessions, [](const auto& session) { return session->closed(); });
    for (const auto& session : sessions) session->tick();
    timer.expires_after(kTick);
    std::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

void Server::Impl::stop_serving() {
  listener.stop();
  timer.cancel();
  for (const auto& session : sessions) {
    session->refuse(Error(ErrorCode::Aborted, "the server of predictions has ended"));
  }
}

Server::Impl::~Impl() {
  stopping = true;
  compute_thread.join();
  asio::post(io, [this] { stop_serving(); });
  const auto deadline = Deadline::after(kToSayGoodbye);
  std::atomic<bool> told{false};
  while (!told && !deadline.expired()) {
    asio::post(io, [&] { told = std::ranges::all_of(sessions, &Session::closed); });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  asio::post(io, [this] {
    for (const auto& session : sessions) session->close();
    sessions.clear();
    work.reset();
  });
  io_thread.join();
}

// ---- the computing thread -----------------------------------------------------------------------

void Server::Impl::compute() {
  while (!stopping) {
    const auto batch = waiting.next(Deadline::after(kLookForTheEnd));
    if (!batch) continue;
    try {
      answer(*batch);
    } catch (const std::exception& failure) {
      const auto why = as_served_error(failure);
      log(LogLevel::warning, "a batch of predictions has failed: {}", why.what());
      fail(*batch, why);
    }
  }
}

void Server::Impl::answer(const Batch& batch) {
  std::vector<Samples> parts;
  std::int64_t samples = 0;
  for (const Part& part : batch) {
    const Request& request = *part.request;
    const auto bytes = request.values.size() / static_cast<std::size_t>(request.samples);
    parts.push_back({request.dtype, part.samples,
                     std::span(request.values)
                         .subspan(bytes * static_cast<std::size_t>(part.first),
                                  bytes * static_cast<std::size_t>(part.samples))});
    samples += part.samples;
  }
  const auto classes = static_cast<std::size_t>(model_facts.classes);
  std::vector<double> logits(classes * static_cast<std::size_t>(samples));
  const auto weights = model.answer(parts, logits);
  recorder.computed_batch();
  std::span<const double> rest(logits);
  for (const Part& part : batch) {
    Request& request = *part.request;
    auto& answer = request.predicted;
    if (request.answered == 0) answer.weights = weights;
    answer.weights.oldest = std::min(answer.weights.oldest, weights.oldest);
    answer.weights.newest = std::max(answer.weights.newest, weights.newest);
    const auto own = rest.first(classes * static_cast<std::size_t>(part.samples));
    answer.logits.insert(answer.logits.end(), own.begin(), own.end());
    rest = rest.subspan(own.size());
    request.answered += part.samples;
    if (request.answered < request.samples) continue;
    recorder.answered(request.samples, Clock::now() - request.arrived);
    request.done(request, std::nullopt);
  }
}

void Server::Impl::fail(const Batch& batch, const Error& why) {
  for (const Part& part : batch) {
    Request& request = *part.request;
    waiting.forget([&](const Request& other) { return &other == &request; });
    if (request.answered < request.samples) request.done(request, why);
  }
}

// -------------------------------------------------------------------------------------------------

Server::Server(const ServerOptions& options, Model& model)
    : impl_(std::make_unique<Impl>(options, model)) {}

Server::~Server() = default;

net::Endpoint Server::endpoint() const {
  return impl_->bound;
}

Figures Server::figures() const {
  return impl_->recorder.figures();
}

}  // namespace bimetal::serving
