#pragma once
// The page of a job for people with a browser: one file, then events as server-sent events, and the
// requests of its buttons.
//
// Access to the page and its buttons: docs/monitoring.md#who-may-do-what.

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "bimetal/base/deadline.h"
#include "bimetal/monitor/history.h"
#include "bimetal/monitor/recorder.h"
#include "bimetal/net/http/http_message.h"
#include "bimetal/progress/requests.h"

namespace bimetal::monitor {

/// A browser gets a cookie by a link that works once. A browser with the cookie may look, beyond
/// loopback, too, and press buttons; each press must come from the page itself. Thread-safe.
class Access {
 public:
  Access();

  /// "/open/SECRET", which lets one browser in. Those made before no longer do.
  std::string new_link();

  /// For a link, once: the line of an answer's head that sets the cookie. Nothing for any other
  /// path.
  std::optional<std::string> open(std::string_view path);

  /// Whether `path` may be such a link. Anybody may ask for one.
  static bool is_link(std::string_view path);

  /// Whether the request has the cookie.
  bool knows(const net::HttpRequest& request) const;

  /// The text that the page must send along when a button is pressed.
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

/// The requests that people may make of the job by buttons.
struct Buttons {
  progress::Requests* requests = nullptr;  ///< none: there are no buttons
  bool save = false;                       ///< the job has a folder for checkpoints
  bool leave = false;                      ///< it goes on when a worker leaves
  bool profile = true;
  bool sample = false;  ///< the task has a model that one can try
};

/// Its answers are asked for by one thread.
class Page {
 public:
  /// All must outlive it.
  Page(const Recorder& recorder, const History& history, Access& access, const Buttons& buttons,
       const std::filesystem::path& run_dir = {});

  /// Nothing for paths that are not the page's.
  std::optional<net::HttpAnswer> answer(const net::HttpRequest& request, std::string_view body);

  /// The file, with head lines that say what the browser may load and run.
  static net::HttpAnswer file();

 private:
  net::HttpAnswer enter(const net::HttpRequest& request);
  net::HttpAnswer stream(const net::HttpRequest& request);
  net::HttpAnswer runs(const net::HttpRequest& request) const;
  net::HttpAnswer press(const net::HttpRequest& request, std::string_view body);
  std::string hello(bool may_press) const;
  const std::string& status();

  const Recorder& recorder_;
  const History& history_;
  Access& access_;
  const Buttons buttons_;
  const std::filesystem::path run_dir_;  ///< absolute, or empty
  std::string status_;                   ///< shared by all who listen, for a moment
  Deadline status_until_ = Deadline::after(std::chrono::milliseconds(0));
};

}  // namespace bimetal::monitor
