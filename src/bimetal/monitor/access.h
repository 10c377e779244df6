#pragma once
// Who may look at the page, and who may press its buttons: docs/monitoring.md#who-may-do-what.

#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "bimetal/net/http/http_message.h"

namespace bimetal::monitor {

/// A browser gets a cookie by a link that works once. Whoever has it may look, beyond loopback,
/// too, and press buttons; each press must come from the page itself. Thread-safe.
class Access {
 public:
  Access();

  /// "/open/SECRET", which lets one browser in. Those made before no longer do.
  std::string new_link();

  /// For a link, once: the line of an answer's head that sets the cookie. Nothing for any other
  /// path.
  std::optional<std::string> open(std::string_view path);

  /// Whether `path` may be such a link: whoever is asked for it need not know anybody.
  static bool is_link(std::string_view path);

  /// Whether the request has the cookie.
  bool knows(const net::HttpRequest& request) const;

  /// What the page must send along when a button is pressed.
  std::string_view press() const { return press_.text(); }
  /// Whether a press has the cookie and came from the page: it knows press(), and its origin is
  /// this very server, whatever its name is to the browser.
  bool may_press(const net::HttpRequest& request) const;

 private:
  const net::Token cookie_, press_;
  const std::string cookie_name_;  ///< jobs of one host, at several ports, share their cookies
  const net::BearerCheck is_cookie_, is_press_;
  std::mutex mutex_;
  std::optional<net::Token> link_;
};

}  // namespace bimetal::monitor
