#include "bimetal/net/http/http_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "bimetal/net/endpoint.h"
#include "bimetal/net/noise.h"

namespace bimetal::net {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

/// Cuts `text` behind the next `separator`; all of it where there is none.
std::string_view next_part(std::string_view& text, std::string_view separator) {
  const auto end = text.find(separator);
  const auto part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + separator.size());
  return part;
}

bool equal_but_for_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool is_version(std::string_view text) {
  return text == "HTTP/1.1" || text == "HTTP/1.0";
}

bool is_token(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("!#$%&'*+-.^_`|~").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

bool is_path(std::string_view text) {
  return text.starts_with('/') &&
         std::ranges::all_of(text, [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

std::optional<std::string_view> bearer_of(std::string_view credentials) {
  const auto scheme = next_part(credentials, " ");
  if (!equal_but_for_case(scheme, "Bearer")) return std::nullopt;
  return trimmed(credentials);
}

std::optional<std::uint64_t> parse_length(std::string_view digits) {
  std::uint64_t value = 0;
  const auto* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

/// False if it is set already: nobody knows which of two is meant.
bool set_once(std::optional<std::string_view>& field, std::string_view value) {
  if (field) return false;
  field = value;
  return true;
}

/// `authority`: HOST or HOST:PORT.
bool names_loopback(std::string_view authority) {
  const bool bracketed = authority.starts_with('[');
  if (bracketed) authority.remove_prefix(1);
  const auto host = next_part(authority, bracketed ? "]" : ":");
  return equal_but_for_case(host, "localhost") || is_loopback(host);
}

std::string_view reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 303: return "See Other";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Content Too Large";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
  }
  return "Internal Server Error";
}

}  // namespace

std::optional<HttpRequest> parse_request(std::string_view head) {
  auto line = next_part(head, kLineEnd);
  HttpRequest request;
  request.method = next_part(line, " ");
  auto target = next_part(line, " ");
  if (!is_token(request.method) || !is_path(target) || !is_version(line)) return std::nullopt;
  request.path = next_part(target, "?");
  const bool newer = line == "HTTP/1.1";  // 1.0 knows no answer before the answer
  for (line = next_part(head, kLineEnd); !line.empty(); line = next_part(head, kLineEnd)) {
    if (line.find(':') == std::string_view::npos) return std::nullopt;
    const auto name = next_part(line, ":");
    if (!is_token(name)) return std::nullopt;
    if (equal_but_for_case(name, "Authorization")) request.bearer = bearer_of(trimmed(line));
    if (equal_but_for_case(name, "Transfer-Encoding")) return std::nullopt;
    if (equal_but_for_case(name, "Host") && !set_once(request.host, trimmed(line))) {
      return std::nullopt;
    }
    if (equal_but_for_case(name, "Origin") && !set_once(request.origin, trimmed(line))) {
      return std::nullopt;
    }
    if (equal_but_for_case(name, "Cookie") && !set_once(request.cookie, trimmed(line))) {
      return std::nullopt;
    }
    if (equal_but_for_case(name, "X-Bimetal-Press") && !set_once(request.press, trimmed(line))) {
      return std::nullopt;
    }
    if (equal_but_for_case(name, "Expect")) {
      request.awaits_continue = newer && equal_but_for_case(trimmed(line), "100-continue");
    }
    if (!equal_but_for_case(name, "Content-Length")) continue;
    const auto length = parse_length(trimmed(line));
    // Two lengths are an attempt to have one message read as two.
    if (!length || (request.length && request.length != length)) return std::nullopt;
    request.length = length;
  }
  return request;
}

bool is_local(const HttpRequest& request) {
  if (request.host && !names_loopback(*request.host)) return false;
  if (!request.origin) return true;
  auto authority = *request.origin;
  next_part(authority, "://");
  return names_loopback(authority);
}

std::optional<std::string_view> cookie_of(const HttpRequest& request, std::string_view name) {
  auto cookies = request.cookie.value_or("");
  while (!cookies.empty()) {
    auto cookie = trimmed(next_part(cookies, ";"));
    if (next_part(cookie, "=") == name) return cookie;
  }
  return std::nullopt;
}

std::string encode_answer(const HttpAnswer& answer, bool with_body) {
  auto more = answer.more_head;
  if (!answer.stream) more += fmt::format("Content-Length: {}\r\n", answer.body.size());
  if (answer.status == 401) more += "WWW-Authenticate: Bearer realm=\"bimetal\"\r\n";
  if (answer.status == 405) more += fmt::format("Allow: {}\r\n", answer.allow);
  return fmt::format(
      "HTTP/1.1 {} {}\r\n"
      "Content-Type: {}\r\n"
      "Cache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "{}"
      "Connection: close\r\n"
      "\r\n"
      "{}",
      answer.status, reason_of(answer.status), answer.content_type, more,
      with_body ? answer.body : "");
}

std::string encode_get(std::string_view path, std::string_view host, std::string_view bearer) {
  const auto credentials =
      bearer.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", bearer);
  return fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\n{}Connection: close\r\n\r\n", path, host,
                     credentials);
}

std::optional<HttpAnswerHead> parse_answer(std::string_view head) {
  auto line = next_part(head, kLineEnd);
  if (!is_version(next_part(line, " "))) return std::nullopt;
  const auto digits = next_part(line, " ");
  const auto status = parse_length(digits);
  if (digits.size() != 3 || !status || *status < 100) return std::nullopt;
  HttpAnswerHead answer{.status = static_cast<int>(*status)};
  for (line = next_part(head, kLineEnd); !line.empty(); line = next_part(head, kLineEnd)) {
    if (!equal_but_for_case(next_part(line, ":"), "Content-Length")) continue;
    answer.length = parse_length(trimmed(line));
    if (!answer.length) return std::nullopt;
  }
  return answer;
}

BearerCheck::BearerCheck(const Token& token) : open_(token.empty()), hash_(hash_of(token.text())) {}

bool BearerCheck::admits(std::string_view bearer) const {
  const auto hash = hash_of(bearer);
  return open_ || sodium_memcmp(hash.data(), hash_.data(), hash.size()) == 0;
}

BearerCheck::Hash BearerCheck::hash_of(std::string_view text) {
  ensure_sodium();
  Hash hash;
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size(), nullptr, 0);
  return hash;
}

}  // namespace bimetal::net
