#pragma once
// Serves a few pages to whoever asks by HTTP, on a thread of its own. Made for a port that
// strangers can reach: a connection has a few seconds in all, a request a few kilobytes, and there
// is only so many connections at once; nothing of a client's bytes decides how much memory is
// taken.

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

#include "bimetal/monitor/http_message.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"

namespace bimetal::monitor {

struct HttpServerOptions {
  net::Endpoint listen;  ///< port 0: a free one
  /// Asked for of every request as "Authorization: Bearer TOKEN"; empty: nothing is.
  net::Token token = {};
  /// Longest that a connection may last, from its first byte to its last.
  std::chrono::milliseconds patience{5000};
};

class HttpServer {
 public:
  /// What `path` shows; status 404 if nothing. Called on the server's thread; an exception becomes
  /// an answer of status 500.
  using Page = std::function<HttpAnswer(std::string_view path)>;

  /// Errors: Unauthorized for an address beyond loopback without a token; System naming the port.
  HttpServer(const HttpServerOptions& options, Page page);
  /// Hangs up on everybody.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Where it listens, with the real port.
  net::Endpoint endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::monitor
