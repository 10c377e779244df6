#include "bimetal/monitor/http_server.h"

#include <array>
#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <memory>
#include <thread>

#include "bimetal/base/log.h"
#include "bimetal/monitor/monitor_token.h"
#include "bimetal/net/tcp/newcomers.h"
#include "bimetal/net/tcp/resolve.h"
#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/spawn.h"
#include "bimetal/net/tcp/watchdog.h"

namespace bimetal::monitor {
namespace {

using asio::ip::tcp;

// Whoever reads figures needs a few milliseconds only.
constexpr std::size_t kMaxConnections = 32;
constexpr std::chrono::seconds kResolveTimeout{5};

tcp::acceptor listen_at(asio::io_context& io, const HttpServerOptions& options) {
  net::require_token_for(options.listen.host, options.token);
  return net::open_acceptor(
      io.get_executor(), net::resolve_to_listen(options.listen, Deadline::after(kResolveTimeout)));
}

/// The head of a request in `buffer`, of which bytes behind it may be there, too. Empty where the
/// connection ends before, or where the head does not fit.
asio::awaitable<std::string_view> read_head(tcp::socket& socket, std::span<char> buffer,
                                            std::error_code& error) {
  std::size_t filled = 0;
  while (filled < buffer.size()) {
    const auto room = buffer.subspan(filled);
    filled += co_await socket.async_read_some(asio::buffer(room.data(), room.size()),
                                              asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return "";
    const std::string_view text(buffer.data(), filled);
    const auto end = text.find(kEndOfHead);
    if (end != std::string_view::npos) co_return text.substr(0, end + kEndOfHead.size());
  }
  co_return "";
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
  Impl(const HttpServerOptions& options, Page given)
      : acceptor(listen_at(io, options)),
        check(options.token),
        patience(options.patience),
        page(std::move(given)),
        bound(net::to_endpoint(acceptor.local_endpoint())) {
    net::spawn(io,
               net::accept_each(acceptor, [this](tcp::socket socket) { take(std::move(socket)); }),
               [](const Error& error) {
                 log(LogLevel::error, "the monitor answers no more: {}", error.what());
               });
    thread = std::thread([this] { io.run(); });
  }

  ~Impl() {
    asio::post(io, [this] { stop(); });
    thread.join();  // the thread ends with the last connection
  }

  asio::awaitable<void> serve(std::shared_ptr<tcp::socket> socket);
  HttpAnswer answer_to(const std::optional<HttpRequest>& request) const;
  void take(tcp::socket socket);
  void stop();

  asio::io_context io{1};
  tcp::acceptor acceptor;
  const BearerCheck check;
  const std::chrono::milliseconds patience;
  const Page page;
  const net::Endpoint bound;
  net::Newcomers connections{kMaxConnections};
  std::thread thread;
};

void HttpServer::Impl::take(tcp::socket socket) {
  net::spawn(io, serve(connections.admit(std::move(socket))), [](const Error& error) {
    log(LogLevel::warning, "the monitor has lost a connection: {}", error.what());
  });
}

asio::awaitable<void> HttpServer::Impl::serve(std::shared_ptr<tcp::socket> socket) {
  {
    const net::Watchdog watchdog(*socket, Deadline::after(patience));
    std::array<char, kMaxHeadBytes> buffer;
    std::error_code error;
    const auto head = co_await read_head(*socket, buffer, error);
    if (!error) {
      const auto request = parse_request(head);
      const auto answer = head.empty() ? HttpAnswer{431, "text/plain", "the request is too long\n"}
                                       : answer_to(request);
      const auto message = encode_answer(answer, !request || request->method != "HEAD");
      co_await asio::async_write(*socket, asio::buffer(message),
                                 asio::redirect_error(asio::use_awaitable, error));
    }
    if (!error) co_await hang_up(*socket, buffer);
  }
  connections.remove(socket);
}

HttpAnswer HttpServer::Impl::answer_to(const std::optional<HttpRequest>& request) const {
  if (!request) return {400, "text/plain", "this is no request of HTTP/1.1\n"};
  if (!check.admits(request->bearer.value_or(""))) {
    return {401, "text/plain", "the monitor's token is missing or wrong: docs/monitoring.md\n"};
  }
  if (request->method != "GET" && request->method != "HEAD") {
    return {405, "text/plain", "only GET and HEAD are known here\n"};
  }
  try {
    return page(request->path);
  } catch (const std::exception& error) {
    log(LogLevel::warning, "the monitor cannot show {}: {}", request->path, error.what());
    return {500, "text/plain", "this page cannot be shown\n"};
  }
}

void HttpServer::Impl::stop() {
  std::error_code ignored;
  acceptor.close(ignored);
  connections.close_all();
}

HttpServer::HttpServer(const HttpServerOptions& options, Page page)
    : impl_(std::make_unique<Impl>(options, std::move(page))) {}

HttpServer::~HttpServer() = default;

net::Endpoint HttpServer::endpoint() const {
  return impl_->bound;
}

}  // namespace bimetal::monitor
