#pragma once
// The part of HTTP/1.1 that Bimetal's pages and requests need (RFC 9110 and 9112): requests whose
// body, if there is one, has a stated length, and one answer for each connection. Pure functions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "bimetal/net/token.h"

namespace bimetal::net {

/// The end of a message's head.
inline constexpr std::string_view kEndOfHead = "\r\n\r\n";

/// Longest head of a request or an answer that is read.
inline constexpr std::size_t kMaxHeadBytes = 8192;

struct HttpRequest {
  std::string_view method;
  std::string_view path;                        ///< without the query
  std::optional<std::string_view> bearer;       ///< of "Authorization: Bearer …"
  std::optional<std::uint64_t> length = {};     ///< of the body, where the client tells it
  std::optional<std::string_view> host = {};    ///< whom the client thinks that it asks
  std::optional<std::string_view> origin = {};  ///< of a browser: whose page makes it ask
  std::optional<std::string_view> cookie = {};  ///< NAME=VALUE; NAME=VALUE…
  std::optional<std::string_view> press = {};   ///< "X-Bimetal-Press", of a page's buttons
  bool awaits_continue = false;                 ///< it sends its body once kContinue is there
};

/// The answer that a client gets before it sends its body.
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

/// `head` up to and with its empty line; the result's views are into it. Nothing for text that is
/// no request of HTTP/1.x, and for bodies in chunks.
std::optional<HttpRequest> parse_request(std::string_view head);

struct HttpAnswer {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body = {};
  std::string_view allow = "GET, HEAD";  ///< of status 405
  std::string more_head = {};            ///< lines of its head, each with its end
  /// In place of the body: gives the text to send next. It is asked now and then until the client
  /// goes; an empty text means nothing yet. Called on the server's thread.
  std::function<std::string()> stream = {};
};

/// Whether a client of this machine asks, by a name that is always this machine's, and no page from
/// another machine makes it ask. A browser lets any page send requests to loopback. A page whose
/// name turns into a loopback address could read the answers. Pages of other servers here may send
/// requests, whose answers their browser keeps from them.
bool is_local(const HttpRequest& request);

/// The value of a cookie of that name, as browsers send it back; nothing where there is none.
std::optional<std::string_view> cookie_of(const HttpRequest& request, std::string_view name);

/// The whole message, or the head of a stream; `with_body` is false for an answer to HEAD.
std::string encode_answer(const HttpAnswer& answer, bool with_body = true);

/// "GET PATH HTTP/1.1 …". An empty bearer is left out.
std::string encode_get(std::string_view path, std::string_view host, std::string_view bearer);

struct HttpAnswerHead {
  int status = 0;                            ///< 100…999
  std::optional<std::uint64_t> length = {};  ///< of the body, where the server tells it
};

/// `head` up to and with its empty line. Nothing for text that is no answer of HTTP/1.x.
std::optional<HttpAnswerHead> parse_answer(std::string_view head);

// Checks that a client of an HTTP server knows its token.

/// Compares secrets by way of their hashes, in a time that tells nothing about either.
class BearerCheck {
 public:
  /// An empty token lets everybody in.
  explicit BearerCheck(const Token& token);

  bool admits(std::string_view bearer) const;

 private:
  using Hash = std::array<unsigned char, 32>;
  static Hash hash_of(std::string_view text);

  bool open_;
  Hash hash_;
};

}  // namespace bimetal::net
