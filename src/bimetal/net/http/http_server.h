#pragma once
// Answers HTTP requests on a thread of its own. Made for a port that strangers can reach. A
// connection has a few seconds for its request and as many to read the answer. The sizes of heads
// and bodies and the number of connections are limited. A client's bytes never decide how much
// memory is used.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "bimetal/net/endpoint.h"
#include "bimetal/net/http/http_message.h"
#include "bimetal/net/token.h"

namespace bimetal::net {

struct HttpServerOptions {
  Endpoint listen;  ///< port 0: a free one
  /// Asked for of every request as "Authorization: Bearer TOKEN"; empty: nothing is, but then
  /// requests of other origins are refused (is_local).
  Token token = {};
  /// Longest that a request may take, from its first byte to its last, and an answer to be read.
  std::chrono::milliseconds patience{5000};
  /// Longest that an answer may take to be made; then it is one of status 504.
  std::chrono::milliseconds answer_patience{5000};
  /// Further requests that the token lets in, as by a cookie. Empty: none.
  std::function<bool(const HttpRequest& request)> admits = {};
  std::chrono::milliseconds stream_every{500};  ///< how often a stream is asked for more
  std::size_t max_streams = 16;                 ///< further ones get status 503
  std::size_t max_body_bytes = 0;    ///< longer bodies are status 413; 0: bodies are not read
  std::size_t max_connections = 32;  ///< a further one takes an older one's place
  std::string name = "monitor";      ///< its name for clients that it refuses
  std::string manual = "docs/monitoring.md";  ///< where they can read about it
};

class HttpServer {
 public:
  /// The answer to `path`; status 404 if there is no such page. Called on the server's thread; an
  /// exception becomes an answer of status 500. Only GET and HEAD are let through.
  using Page = std::function<HttpAnswer(std::string_view path)>;

  /// The answer to one request. May be called from any thread, even after the server is gone.
  struct Respond {
    std::function<void(HttpAnswer)> give;  ///< an answer after its request is over goes
                                           ///< nowhere
    std::function<bool()> awaited;         ///< false once it is over
    void operator()(HttpAnswer answer) const { give(std::move(answer)); }
  };
  /// Takes a request of any method; its views are valid until this returns. Called on the server's
  /// thread; an exception becomes an answer of status 500.
  using Handler =
      std::function<void(const HttpRequest& request, std::string_view body, Respond respond)>;

  /// Errors: Unauthorized for an address beyond loopback without a token; System naming the port.
  HttpServer(const HttpServerOptions& options, Page page);
  HttpServer(const HttpServerOptions& options, Handler handler);
  /// Hangs up on everybody.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Where it listens, with the real port.
  Endpoint endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::net
