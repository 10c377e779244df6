#include "bimetal/net/http/http_server.h"

#include <fmt/format.h>

#include <array>
#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/net/http/http_message.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/net/tcp/listener.h"
#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/tcp_mesh_impl.h"

namespace bimetal::net {

using asio::ip::tcp;

/// A request as it comes in: its head, and the part of its body that has come.
struct HttpIncoming {
  std::array<char, kMaxHeadBytes> buffer;
  std::string_view head = {}, begun_body = {};
};

/// Where one request waits for its answer, which may come from any thread, or never, or when nobody
/// waits any more.
class HttpReply {
 public:
  explicit HttpReply(asio::io_context& io)
      : timer(std::make_shared<asio::steady_timer>(io)), io_(&io) {}

  void give(HttpAnswer answer) {
    const std::scoped_lock lock(mutex_);
    if (answer_ || io_ == nullptr) return;
    answer_ = std::move(answer);
    asio::post(*io_, [timer = timer] { timer->cancel(); });
  }
  bool awaited() const {
    const std::scoped_lock lock(mutex_);
    return io_ != nullptr && !answer_;
  }
  bool given() const {
    const std::scoped_lock lock(mutex_);
    return answer_.has_value();
  }
  std::optional<HttpAnswer> take() {
    const std::scoped_lock lock(mutex_);
    io_ = nullptr;
    timer.reset();  // which must not outlive its context, as this may
    return std::move(answer_);
  }

  std::shared_ptr<asio::steady_timer> timer;  ///< of the server's thread

 private:
  mutable std::mutex mutex_;
  asio::io_context* io_;
  std::optional<HttpAnswer> answer_;
};

namespace {

constexpr std::chrono::seconds kToResolve{5};

tcp::acceptor listen_at(asio::io_context& io, const HttpServerOptions& options) {
  require_token_for(options.listen.host, options.token);
  return open_acceptor(io.get_executor(),
                       resolve_to_listen(options.listen, Deadline::after(kToResolve)));
}

/// The head stays empty where the connection ends before, or where the head does not fit.
asio::awaitable<void> read_head(tcp::socket& socket, HttpIncoming& in, std::error_code& error) {
  std::size_t filled = 0;
  while (filled < in.buffer.size()) {
    filled += co_await socket.async_read_some(
        asio::buffer(in.buffer.data() + filled, in.buffer.size() - filled),
        asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    const std::string_view text(in.buffer.data(), filled);
    const auto end = text.find(kEndOfHead);
    if (end == std::string_view::npos) continue;
    in.head = text.substr(0, end + kEndOfHead.size());
    in.begun_body = text.substr(in.head.size());
    co_return;
  }
}

/// The rest of a body of that length, which is no longer than may be.
asio::awaitable<std::string> read_body(tcp::socket& socket, std::string_view begun,
                                       std::size_t length, std::error_code& error) {
  std::string body(begun.substr(0, length));
  const auto have = body.size();
  body.resize(length);
  co_await asio::async_read(socket, asio::buffer(body.data() + have, length - have),
                            asio::redirect_error(asio::use_awaitable, error));
  co_return body;
}

/// Lets the client read its answer before the connection goes: closing with bytes unread would
/// reset it.
asio::awaitable<void> hang_up(tcp::socket& socket, std::span<char> buffer) {
  std::error_code error;
  socket.shutdown(tcp::socket::shutdown_send, error);
  while (!error) {
    co_await socket.async_read_some(asio::buffer(buffer.data(), buffer.size()),
                                    asio::redirect_error(asio::use_awaitable, error));
  }
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpServerOptions& given, Handler asked)
      : options(given),
        acceptor(listen_at(io, options)),
        check(options.token),
        handler(std::move(asked)),
        bound(to_endpoint(acceptor.local_endpoint())),
        connections(options.max_connections) {
    net::spawn(io,
               net::accept_each(acceptor, [this](tcp::socket socket) { take(std::move(socket)); }),
               [this](const Error& error) {
                 log(LogLevel::error, "the {} answers no more: {}", options.name, error.what());
               });
    thread = std::thread([this] {
      net::run_handlers(io, [this](const Error& error) {
        log(LogLevel::error, "the {} has failed to answer: {}", options.name, error.what());
      });
    });
  }

  ~Impl() {
    asio::post(io, [this] { stop(); });
    thread.join();  // the thread ends with the last connection
  }

  struct Answering;

  asio::awaitable<void> serve(std::shared_ptr<tcp::socket> socket);
  asio::awaitable<void> stream(tcp::socket& socket, const HttpAnswer& told);
  asio::awaitable<HttpAnswer> answer(const HttpRequest& request, std::string_view body);
  std::optional<HttpAnswer> refusal_of(const std::optional<HttpRequest>& request) const;
  void take(tcp::socket socket);
  void stop();

  const HttpServerOptions options;
  asio::io_context io{1};
  tcp::acceptor acceptor;
  const BearerCheck check;
  const Handler handler;
  const Endpoint bound;
  Newcomers connections;
  std::list<std::shared_ptr<tcp::socket>> answering;
  std::list<std::shared_ptr<HttpReply>> waiting;
  std::list<std::shared_ptr<asio::steady_timer>> pauses;  ///< of the streams
  bool stopping = false;
  std::thread thread;
};

void HttpServer::Impl::take(tcp::socket socket) {
  net::spawn(io, serve(connections.admit(std::move(socket))), [this](const Error& error) {
    log(LogLevel::warning, "the {} has lost a connection: {}", options.name, error.what());
  });
}

/// Lists a connection with those that are answered, whom no stranger pushes out, until it goes.
struct HttpServer::Impl::Answering {
  Answering(Impl& owner, const std::shared_ptr<tcp::socket>& socket)
      : impl(owner), place(impl.answering.insert(impl.answering.end(), socket)) {
    impl.connections.remove(socket);
  }
  ~Answering() { impl.answering.erase(place); }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

  Impl& impl;
  std::list<std::shared_ptr<tcp::socket>>::iterator place;
};

asio::awaitable<void> HttpServer::Impl::serve(std::shared_ptr<tcp::socket> socket) {
  const auto in = std::make_unique<HttpIncoming>();
  std::optional<Answering> proved;
  std::error_code error;
  std::optional<HttpRequest> request;
  std::optional<HttpAnswer> told;
  std::string body;
  {
    const Watchdog watchdog(*socket, Deadline::after(options.patience));
    co_await read_head(*socket, *in, error);
    if (!error) {
      request = parse_request(in->head);
      told = in->head.empty() ? HttpAnswer{431, "text/plain", "the request is too long\n"}
                              : refusal_of(request);
      const auto length = options.max_body_bytes > 0 && !told ? request->length.value_or(0) : 0;
      if (request && request->awaits_continue && length > in->begun_body.size()) {
        co_await asio::async_write(*socket, asio::buffer(kContinue),
                                   asio::redirect_error(asio::use_awaitable, error));
      }
      if (length > 0 && !error) {
        body = co_await read_body(*socket, in->begun_body, length, error);
      }
    }
  }
  if (!error && !told && answering.size() >= options.max_connections) {
    told = HttpAnswer{503, "text/plain", "too many ask at once\n"};
  }
  if (!error && !told) {
    proved.emplace(*this, socket);
    told = co_await answer(*request, body);
  }
  body = {};
  if (!error && told->stream && request->method == "GET") {
    if (pauses.size() < options.max_streams) {
      co_return co_await stream(*socket, *told);
    }
    told = HttpAnswer{503, "text/plain", "too many watch at once\n"};
  }
  if (!error) {
    const Watchdog watchdog(*socket, Deadline::after(options.patience));
    const auto message = encode_answer(*told, !request || request->method != "HEAD");
    co_await asio::async_write(*socket, asio::buffer(message),
                               asio::redirect_error(asio::use_awaitable, error));
    if (!error) co_await hang_up(*socket, in->buffer);
  }
  connections.remove(socket);
}

/// A client that does not read is hung up on: only here does anybody wait for it.
asio::awaitable<void> HttpServer::Impl::stream(tcp::socket& socket, const HttpAnswer& told) {
  constexpr int kSilentPauses = 10;  // then something is sent that shows whether anybody is there
  constexpr const char* kAlive = ":\n\n";
  const auto pause = std::make_shared<asio::steady_timer>(io);
  const auto place = pauses.insert(pauses.end(), pause);
  std::error_code error, ignored;
  auto message = encode_answer(told);
  for (int silent = 0; !error && !stopping; ++silent) {
    try {
      message += told.stream();
    } catch (const std::exception& failure) {
      log(LogLevel::warning, "the {} cannot go on telling: {}", options.name, failure.what());
      break;
    }
    if (message.empty() && silent >= kSilentPauses) message = kAlive;
    if (!message.empty()) {
      silent = 0;
      const Watchdog watchdog(socket, Deadline::after(options.patience));
      co_await asio::async_write(socket, asio::buffer(message),
                                 asio::redirect_error(asio::use_awaitable, error));
      message.clear();
    }
    pause->expires_after(options.stream_every);
    if (!error && !stopping) {
      co_await pause->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }
  pauses.erase(place);
}

/// An answer to a request that is refused without being looked into.
std::optional<HttpAnswer> HttpServer::Impl::refusal_of(
    const std::optional<HttpRequest>& request) const {
  if (!request) return HttpAnswer{400, "text/plain", "this is no request of HTTP/1.1\n"};
  if (!check.admits(request->bearer.value_or("")) &&
      !(options.admits && options.admits(*request))) {
    return HttpAnswer{
        401, "text/plain",
        fmt::format("the {}'s token is missing or wrong: {}\n", options.name, options.manual)};
  }
  if (options.token.empty() && !is_local(*request)) {
    return HttpAnswer{403, "text/plain",
                      fmt::format("without a token the {} answers programs of this machine that "
                                  "ask for localhost, and no pages of other places: {}\n",
                                  options.name, options.manual)};
  }
  if (options.max_body_bytes > 0 && request->length.value_or(0) > options.max_body_bytes) {
    return HttpAnswer{413, "text/plain",
                      fmt::format("at most {} bytes are taken\n", options.max_body_bytes)};
  }
  return std::nullopt;
}

asio::awaitable<HttpAnswer> HttpServer::Impl::answer(const HttpRequest& request,
                                                     std::string_view body) {
  const auto reply = std::make_shared<HttpReply>(io);
  try {
    handler(request, body,
            {[reply](HttpAnswer answer) { reply->give(std::move(answer)); },
             [reply] { return reply->awaited(); }});
  } catch (const std::exception& failure) {
    log(LogLevel::warning, "the {} cannot show {}: {}", options.name, request.path, failure.what());
    reply->take();
    co_return HttpAnswer{500, "text/plain", "this page cannot be shown\n"};
  }
  if (!reply->given() && !stopping) {
    const auto place = waiting.insert(waiting.end(), reply);
    std::error_code ignored;
    reply->timer->expires_after(options.answer_patience);
    co_await reply->timer->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    waiting.erase(place);
  }
  auto given = reply->take();
  co_return given ? std::move(*given)
                  : HttpAnswer{504, "text/plain", "the answer has taken too long\n"};
}

void HttpServer::Impl::stop() {
  stopping = true;
  std::error_code ignored;
  acceptor.close(ignored);
  connections.close_all();
  for (const auto& socket : answering) socket->close(ignored);
  for (const auto& reply : waiting) reply->timer->cancel();
  for (const auto& pause : pauses) pause->cancel();
}

namespace {

/// A handler for pages, which are ready at once.
HttpServer::Handler handler_of(HttpServer::Page page) {
  return [page = std::move(page)](const HttpRequest& request, std::string_view,
                                  const HttpServer::Respond& respond) {
    if (request.method != "GET" && request.method != "HEAD") {
      return respond({405, "text/plain", "only GET and HEAD are known here\n"});
    }
    respond(page(request.path));
  };
}

}  // namespace

HttpServer::HttpServer(const HttpServerOptions& options, Page page)
    : HttpServer(options, handler_of(std::move(page))) {}

HttpServer::HttpServer(const HttpServerOptions& options, Handler handler)
    : impl_(std::make_unique<Impl>(options, std::move(handler))) {}

HttpServer::~HttpServer() = default;

Endpoint HttpServer::endpoint() const {
  return impl_->bound;
}

}  // namespace bimetal::net
