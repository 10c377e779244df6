#include "bimetal/launch/fetch_url.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/launch/fetch_url_script.h"
#include "bimetal/launch/local/pipe.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::launch {
namespace {

namespace fs = std::filesystem;
using FetchEvent = nlohmann::json;

constexpr int kLookAgainMs = 100;
constexpr std::size_t kReadAtATime = std::size_t{1} << 16;
constexpr std::size_t kMostWords = 300;  // of what Python says besides events

std::string find_python() {
  try {
    return find_program(python_program());
  } catch (const Error&) {
    throw Error(ErrorCode::System, fmt::format("data at a URL needs Python 3 with fsspec, and "
                                               "there is no '{}'; BIMETAL_PYTHON names another one",
                                               python_program()));
  }
}

ErrorCode code_of(const FetchEvent& event) {
  const auto name = event.value("code", "");
  for (const auto code : {ErrorCode::Unsupported, ErrorCode::InvalidArgument}) {
    if (to_string(code) == name) return code;
  }
  return ErrorCode::System;
}

std::uint64_t bytes_in(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code ignored;  // a file may be renamed while we look
  for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const auto size = entry->file_size(ignored);
    if (!ignored) bytes += size;
  }
  return bytes;
}

/// The Python process and its messages.
class Fetcher {
 public:
  Fetcher(const data::FetchRequest& request, progress::Meter& meter)
      : request_(request), meter_(meter), pipe_(Pipe::create()), process_(start()) {
    pipe_.write.close();  // the stream then ends with the process
    set_nonblocking(pipe_.read);
  }

  data::Fetched run() {
    auto end_of_patience = Deadline::after(request_.patience);
    while (!outcome_) {
      if (!listen() && !outcome_) fail(ErrorCode::System, "Python ended early" + said());
      const bool checking = std::exchange(heard_, false);
      if (look_at_files() || checking) end_of_patience = Deadline::after(request_.patience);
      if (!end_of_patience.expired()) continue;
      fail(ErrorCode::Timeout,
           fmt::format("nothing has come for {} s",
                       std::chrono::duration<double>(request_.patience).count()));
    }
    return *outcome_;
  }

 private:
  Process start() {
    const FetchEvent request = {{"url", request_.url},
                                {"names", request_.names},
                                {"into", request_.into.string()},
                                {"current", request_.current.string()}};
    ProcessCommand command;
    command.argv = {find_python(), "-c", kFetchScript};
    command.environment = {
        {"BIMETAL_FETCH", request.dump(-1, ' ', false, FetchEvent::error_handler_t::replace)}};
    command.descriptors = {{1, pipe_.write.number()}, {2, pipe_.write.number()}};
    command.dies_with_starter = true;
    return Process::start(command);
  }

  /// Takes in what Python tells, for a moment. False at the end of the stream.
  bool listen() {
    pollfd wait{pipe_.read.number(), POLLIN, 0};
    ::poll(&wait, 1, kLookAgainMs);
    std::string text;
    const bool more = read_some(pipe_.read, text, kReadAtATime);
    for (const char c : text) {
      if (c == '\n') {
        take_line(std::exchange(line_, {}));
      } else if (line_.size() < kReadAtATime) {
        line_ += c;
      }
    }
    return more;
  }

  void take_line(const std::string& line) {
    const auto event = FetchEvent::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) {
      words_ = line.substr(0, kMostWords);  // the last line of a traceback says most
      return;
    }
    const auto what = event.value("event", "");
    if (what == "total") meter_.expect(event.value("bytes", std::uint64_t{0}));
    if (what == "checking") heard_ = true;
    if (what == "damaged") {
      log(LogLevel::warning, "{} of an earlier fetch is damaged, and comes anew",
          event.value("name", ""));
    }
    if (what == "unchanged") outcome_ = data::Fetched::unchanged;
    if (what == "complete") outcome_ = data::Fetched::complete;
    if (what == "error") fail(code_of(event), event.value("message", ""));
  }

  /// The files grow while they come, whatever file system fsspec talks to. True if they have.
  bool look_at_files() {
    meter_.require_going();
    const auto now = bytes_in(request_.into);
    if (now <= seen_) return false;
    meter_.advance(now - std::exchange(seen_, now));
    return true;
  }

  std::string said() const { return words_.empty() ? "" : ": " + words_; }

  [[noreturn]] void fail(ErrorCode code, const std::string& why) const {
    throw Error(code,
                fmt::format("cannot fetch the data from '{}': {}", without_secrets(request_.url),
                            without_secrets_of(request_.url, why)));
  }

  const data::FetchRequest& request_;
  progress::Meter& meter_;
  Pipe pipe_;
  Process process_;
  std::string line_, words_;
  std::uint64_t seen_ = 0;
  bool heard_ = false;
  std::optional<data::Fetched> outcome_;
};

}  // namespace

data::Fetched fetch_url(const data::FetchRequest& request, progress::Meter& meter) {
  return Fetcher(request, meter).run();
}

}  // namespace bimetal::launch
