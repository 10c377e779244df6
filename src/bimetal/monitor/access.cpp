#include "bimetal/monitor/access.h"

#include <fmt/format.h>

#include "bimetal/net/token.h"

namespace bimetal::monitor {
namespace {

constexpr std::string_view kLinkPath = "/open/";
constexpr int kCookieSeconds = 30 * 24 * 3600;
constexpr std::size_t kNameDigits = 8;

}  // namespace

Access::Access()
    : cookie_(net::Token::generate()),
      press_(net::Token::generate()),
      cookie_name_("bimetal_" + std::string(net::Token::generate().text().substr(0, kNameDigits))),
      is_cookie_(cookie_),
      is_press_(press_) {}

std::string Access::new_link() {
  const std::scoped_lock lock(mutex_);
  link_ = net::Token::generate();
  return fmt::format("{}{}", kLinkPath, link_->text());
}

bool Access::is_link(std::string_view path) {
  return path.starts_with(kLinkPath);
}

std::optional<std::string> Access::open(std::string_view path) {
  const std::scoped_lock lock(mutex_);
  if (!link_ || !is_link(path)) return std::nullopt;
  if (!net::BearerCheck(*link_).admits(path.substr(kLinkPath.size()))) return std::nullopt;
  link_.reset();
  return fmt::format("Set-Cookie: {}={}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict\r\n",
                     cookie_name_, cookie_.text(), kCookieSeconds);
}

bool Access::knows(const net::HttpRequest& request) const {
  const auto cookie = net::cookie_of(request, cookie_name_);
  return cookie && is_cookie_.admits(*cookie);
}

bool Access::may_press(const net::HttpRequest& request) const {
  if (!knows(request) || !is_press_.admits(request.press.value_or(""))) return false;
  return request.host && request.origin == fmt::format("http://{}", *request.host);
}

}  // namespace bimetal::monitor
