#include "bimetal/serving/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/awaitable.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <atomic>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/log.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/net/link/session.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/serving/answering.h"
#include "bimetal/serving/session.h"

namespace bimetal::serving {

void Recorder::answered(std::int64_t samples, std::chrono::duration<double> latency) {
  const std::scoped_lock lock(mutex_);
  latencies_[counts_.requests++ % latencies_.size()] = latency.count();
  counts_.samples += static_cast<std::uint64_t>(samples);
}

void Recorder::computed_batch() {
  const std::scoped_lock lock(mutex_);
  ++counts_.batches;
}

void Recorder::refused() {
  const std::scoped_lock lock(mutex_);
  ++counts_.refused;
}

void Recorder::set_clients(std::size_t clients) {
  const std::scoped_lock lock(mutex_);
  counts_.clients = clients;
}

Figures Recorder::figures() const {
  std::vector<double> known;
  Figures figures;
  {
    const std::scoped_lock lock(mutex_);
    figures = counts_;
    const auto count = std::min<std::size_t>(counts_.requests, latencies_.size());
    known.assign(latencies_.begin(), latencies_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  if (known.empty()) return figures;
  std::ranges::sort(known);
  const auto at = [&](double part) {
    return known[static_cast<std::size_t>(part * static_cast<double>(known.size() - 1) + 0.5)];
  };
  figures.latency_median_s = at(0.5);
  figures.latency_p99_s = at(0.99);
  return figures;
}

namespace {

/// For clients to read that the server ends.
constexpr std::chrono::milliseconds kToSayGoodbye{300};

}  // namespace

struct Server::Impl final : SessionOwner {
  /// Exactly one of `model` and `writer` is set.
  Impl(const ServerOptions& given, ModelFacts served, Model* model, Writer* writer)
      : options(given),
        model_facts(std::move(served)),
        batches(model ? std::make_unique<BatchAnswering>(given.batching, *model, recorder)
                      : nullptr),
        writing(writer ? std::make_unique<TextAnswering>(given.texts, *writer, recorder) : nullptr),
        listener(io, options.listen, listener_options()),
        bound(listener.endpoint()),
        work(io.get_executor()),
        io_thread([this] { move_bytes(); }),
        compute_thread([this] { answering().run(stopping); }) {}
  ~Impl() override;

  net::ListenerOptions listener_options();
  void take(asio::ip::tcp::socket socket, const net::AuthenticatedClient& client);
  void move_bytes() noexcept;
  void fail(const Error& error);
  asio::awaitable<void> tick_loop();
  void count_clients();
  void stop_serving();
  /// A number that no connection has.
  std::uint64_t next_guest() { return kFirstGuest + guests++; }
  Answering& answering() { return batches ? static_cast<Answering&>(*batches) : *writing; }

  // SessionOwner
  const ModelFacts& facts() const override { return model_facts; }
  Batcher* batcher() override { return batches ? &batches->batcher() : nullptr; }
  TextAnswering* texts() override { return writing.get(); }
  Figures figures() const override { return recorder.figures(); }
  void on_refused() override { recorder.refused(); }
  void post(std::function<void()> action) override { asio::post(io, std::move(action)); }
  void on_ended(const Session& session, const std::string& why) override;

  const ServerOptions options;
  const ModelFacts model_facts;
  Recorder recorder;
  const std::unique_ptr<BatchAnswering> batches;
  const std::unique_ptr<TextAnswering> writing;
  std::atomic<bool> stopping{false};
  mutable std::mutex failure_mutex;
  std::optional<Error> failure;
  asio::io_context io{1};
  std::list<std::shared_ptr<Session>> sessions;  ///< also those that are told why they end
  std::uint64_t sessions_so_far = 0;
  std::atomic<std::uint64_t> guests{0};
  asio::steady_timer timer{io};
  net::Listener listener;
  const net::Endpoint bound;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::thread io_thread, compute_thread;
};

// ---- the I/O thread -----------------------------------------------------------------------------

net::ListenerOptions Server::Impl::listener_options() {
  auto listening =
      net::listener_options(net::Service::Predictions, {options.token, options.encryption, {}});
  listening.on_connection = [this](asio::ip::tcp::socket socket,
                                   const net::AuthenticatedClient& client) {
    take(std::move(socket), client);
  };
  return listening;
}

void Server::Impl::move_bytes() noexcept {
  try {
    listener.start();
    net::spawn(io, tick_loop(), [this](const Error& error) { fail(error); });
    net::run_handlers(io, [this](const Error& error) { fail(error); });
  } catch (...) {
    fail(to_error(std::current_exception()));
  }
}

void Server::Impl::fail(const Error& error) {
  log(LogLevel::error, "predictions are served no more: {}", error.what());
  const std::scoped_lock lock(failure_mutex);
  if (!failure) failure = error;
}

void Server::Impl::take(asio::ip::tcp::socket socket, const net::AuthenticatedClient& client) {
  auto session =
      std::make_shared<Session>(std::move(socket), client.keys, ++sessions_so_far, *this);
  const auto here = std::ranges::count_if(sessions, [](const auto& s) { return s->is_open(); });
  sessions.push_back(session);
  log(LogLevel::info, "predictions: client {} has come from {}", session->number(),
      session->remote());
  std::optional<Error> refusal;
  if (static_cast<std::size_t>(here) >= options.max_clients) {
    refusal = Error(ErrorCode::Aborted,
                    fmt::format("the server is busy: it has {} already", counted(here, "client")));
  }
  session->start(refusal);
  count_clients();
}

void Server::Impl::on_ended(const Session& session, const std::string& why) {
  log(LogLevel::info, "predictions: client {} from {} is gone: {}", session.number(),
      session.remote(), why);
  answering().forget(session.number());
  count_clients();
}

void Server::Impl::count_clients() {
  const auto here = std::ranges::count_if(sessions, [](const auto& s) { return s->is_open(); });
  answering().set_clients(static_cast<std::size_t>(here));
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

// -------------------------------------------------------------------------------------------------

Server::Server(const ServerOptions& options, Model& model)
    : impl_(std::make_unique<Impl>(options, model.facts(), &model, nullptr)) {}

Server::Server(const ServerOptions& options, Writer& writer)
    : impl_(std::make_unique<Impl>(options, writer.facts(), nullptr, &writer)) {}

Server::~Server() = default;

net::Endpoint Server::endpoint() const {
  return impl_->bound;
}

Figures Server::figures() const {
  return impl_->recorder.figures();
}

const ModelFacts& Server::facts() const {
  return impl_->model_facts;
}

bool Server::ask(std::shared_ptr<Request> request) {
  const auto& facts = impl_->model_facts;
  const auto bytes = static_cast<std::size_t>(request->samples * facts.values_per_sample()) *
                     comm::size_of(request->dtype);
  if (!impl_->batches || !is_sample_type(request->dtype) || request->samples < 1 ||
      request->samples > most_samples(facts, request->dtype) || request->values.size() != bytes) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("these are no samples of the model '{}', or too many of them", facts.model));
  }
  auto& batcher = impl_->batches->batcher();
  if (!batcher.reserve(request->samples)) {
    impl_->recorder.refused();
    return false;
  }
  request->client = impl_->next_guest();
  batcher.add(std::move(request));
  return true;
}

bool Server::write(TextRequest wanted,
                   std::function<void(TextPiece, const std::optional<Error>&)> tell,
                   std::function<bool()> awaited) {
  if (!impl_->writing) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("the model '{}' is no language model: it predicts the classes of images",
                    impl_->model_facts.model));
  }
  const bool taken = impl_->writing->add({.client = impl_->next_guest(),
                                          .wanted = std::move(wanted),
                                          .arrived = std::chrono::steady_clock::now(),
                                          .tell = std::move(tell),
                                          .awaited = std::move(awaited)});
  if (!taken) impl_->recorder.refused();
  return taken;
}

std::optional<Error> Server::failure() const {
  const std::scoped_lock lock(impl_->failure_mutex);
  return impl_->failure;
}

}  // namespace bimetal::serving
