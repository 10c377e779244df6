#include "bimetal/cli/rank/trackers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/launch/local/pipe.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/monitor/pages.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kDefault = "trackio";
constexpr const char* kTensorBoard = "tensorboard";  // which needs no Python
constexpr std::chrono::milliseconds kReadEvery{1000};
/// The process makes a sign twice a second. One that makes none has hung or was stopped.
constexpr std::chrono::milliseconds kSilence{5000}, kForWhatIsLeft{30000};
/// A job that fails has its error to tell, and is not held up.
constexpr std::chrono::milliseconds kToFail{800}, kBeforeAWord{2000};

/// As `python -m bimetal.trackers`, but without importing the package, which imports torch.
constexpr const char* kRun =
    "import importlib.util, runpy, sys, types\n"
    "found = importlib.util.find_spec('bimetal')\n"
    "if found is None: sys.exit('this Python has no package bimetal')\n"
    "package = types.ModuleType('bimetal')\n"
    "package.__path__ = list(found.submodule_search_locations)\n"
    "sys.modules['bimetal'] = package\n"
    "runpy.run_module('bimetal.trackers', run_name='__main__', alter_sys=True)\n";

/// Whether one of the folders of modules below `prefix` has it.
bool has_package_below(const fs::path& prefix, const std::string& name) {
  std::error_code none;
  for (const auto& version : fs::directory_iterator(prefix / "lib", none)) {
    if (!version.path().filename().string().starts_with("python3")) continue;
    for (const auto* modules : {"site-packages", "dist-packages"}) {
      if (fs::is_directory(version.path() / modules / name, none)) return true;
    }
  }
  return false;
}

/// Without starting that Python: most jobs have no trackers, and it takes a while.
bool python_has(const std::string& name) {
  std::string python;
  try {
    python = launch::find_program(launch::python_program());
  } catch (const Error&) {
    return false;
  }
  std::error_code none;
  const auto prefix = fs::path(python).parent_path().parent_path();
  if (has_package_below(prefix, name)) return true;
  if (fs::exists(prefix / "pyvenv.cfg", none)) return false;  // it has its own modules alone
  const char* home = std::getenv("HOME");
  return has_package_below("/usr/local", name) ||
         (home != nullptr && has_package_below(fs::path(home) / ".local", name));
}

/// The part of the job that others may see.
Json shown(job::JobConfig job) {
  job.data.path = without_secrets(job.data.path);
  job.model.weights = without_secrets(job.model.weights);
  return Json::parse(job::to_json(job));
}

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

const char* word_of(RunEnd how) {
  switch (how) {
    case RunEnd::finished: return "finished";
    case RunEnd::interrupted: return "interrupted";
    case RunEnd::moved: return "moved";
    case RunEnd::failed: return "failed";
  }
  return "failed";
}

}  // namespace

std::vector<std::string> trackers_of(const RankRequest& request) {
  auto names = request.job.monitor.trackers;
  if (names == std::vector<std::string>{job::kAutoTrackers}) {
    const bool asked_for = request.summary && request.stop_after_s == 0;
    if (asked_for && python_has(kDefault)) return {kDefault};
    return {};
  }
  std::erase(names, kTensorBoard);
  return names;
}

std::string tensorboard_folder(const job::JobConfig& job) {
  const auto& [listen, page, folder, trackers, checkpoints] = job.monitor;
  if (!folder.empty() || std::ranges::find(trackers, kTensorBoard) == trackers.end()) return folder;
  const auto& saved = job.checkpoint.dir;
  return (saved.empty() ? fs::path("runs") : fs::path(saved)) / kTensorBoard;
}

/// The process, and the two pipes between it and this one.
class Trackers::Child {
 public:
  explicit Child(const Json& task) {
    launch::prefer_own_package();
    auto input = launch::Pipe::create(), output = launch::Pipe::create();
    launch::ProcessCommand command;
    command.argv = {launch::find_program(launch::python_program()), "-c", kRun};
    command.environment = {{"BIMETAL_TOKEN", ""}, {"BIMETAL_TOKEN_FILE", ""}};
    command.descriptors = {
        {0, input.read.number()}, {1, output.write.number()}, {2, output.write.number()}};
    command.dies_with_starter = true;
    process_.emplace(launch::Process::start(command));
    to_ = std::move(input.write);
    from_ = std::move(output.read);
    launch::set_nonblocking(from_);
    tell(task);
  }

  void tell(const Json& json) {
    if (!to_) return;
    out_.push(line_of(json));
    push();
  }
  void push() {
    if (to_ && !out_.empty()) out_.write_some(to_.number());
  }
  void say_no_more() {
    if (out_.empty()) to_.close();
  }

  /// The lines that it has written since, without signs of life.
  std::vector<std::string> lines() {
    const auto before = text_.size();
    launch::read_available(from_, text_);
    if (text_.size() != before) silent_ = Stopwatch();
    std::vector<std::string> lines;
    for (auto end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      if (end > 0) lines.push_back(text_.substr(0, end));
      text_.erase(0, end + 1);
    }
    return lines;
  }

  std::optional<launch::ProcessExit> poll() { return process_->poll(); }
  bool silent() const {
    return silent_.seconds() > std::chrono::duration<double>(kSilence).count();
  }

 private:
  std::optional<launch::Process> process_;
  launch::FileDescriptor to_, from_;
  launch::OutgoingBytes out_;
  std::string text_;
  Stopwatch silent_;
};

Trackers::Trackers(const RankRequest& request, monitor::Monitor& monitor, Terminal& terminal)
    : terminal_(terminal) {
  const auto bound = monitor.endpoint();
  const auto names = trackers_of(request);
  if (!bound || names.empty()) return;
  const auto& job = request.job;
  const bool open = net::is_loopback(bound->host);
  const auto token = open ? net::Token() : monitor::monitor_token(net::Token::from_environment());
  try {
    child_ = std::make_unique<Child>(Json{{"address", monitor.address()},
                                          {"token", std::string(token.text())},
                                          {"trackers", names},
                                          {"job", shown(job)},
                                          {"folder", job.checkpoint.dir},
                                          {"checkpoints", job.monitor.tracker_checkpoints}});
  } catch (const std::exception& error) {
    terminal_.print(fmt::format("note: no trackers: {}", error.what()));
  }
}

Trackers::~Trackers() {
  end(RunEnd::failed);
}

void Trackers::look() {
  if (!child_) return;
  child_->push();
  for (const auto& line : child_->lines()) terminal_.print(line);
  const auto exit = child_->poll();
  if (!exit) return;
  for (const auto& line : child_->lines()) terminal_.print(line);
  if (exit->status != 0 || exit->signal != 0) {
    terminal_.print(fmt::format("note: the process of the trackers {}; the job goes on without",
                                launch::how_it_ended(*exit)));
  }
  child_.reset();
}

void Trackers::on_phase(const std::string&) {
  look();
}

void Trackers::on_step(const progress::Progress&) {
  if (!child_ || !next_look_.expired()) return;
  next_look_ = Deadline::after(kReadEvery);
  look();
}

void Trackers::end(RunEnd how) {
  if (!child_) return;
  child_->tell({{"end", word_of(how)}});
  const bool failed = how == RunEnd::failed;
  const auto deadline = Deadline::after(failed ? kToFail : kForWhatIsLeft);
  auto word = Deadline::after(kBeforeAWord);
  while (child_) {
    look();
    if (!child_) return;
    child_->say_no_more();
    if (child_->silent() || deadline.expired()) break;
    if (word.expired()) {
      terminal_.print("waiting for the trackers to write what is left");
      word = deadline;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (!failed) {
    terminal_.print("note: the trackers do not end, and were stopped; what they wrote stays");
  }
  child_.reset();
}

}  // namespace bimetal::cli
