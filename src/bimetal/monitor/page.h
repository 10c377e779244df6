#pragma once
// The page of a job for people with a browser: one file, then what happens as server-sent events,
// and what is asked by its buttons.

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "bimetal/base/deadline.h"
#include "bimetal/monitor/access.h"
#include "bimetal/monitor/history.h"
#include "bimetal/monitor/recorder.h"
#include "bimetal/net/http/http_message.h"
#include "bimetal/progress/requests.h"

namespace bimetal::monitor {

/// What people may ask of the job by buttons.
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

  /// The file, with what the browser may load and run as its head's lines.
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
