#include "bimetal/launch/local/status_pipe.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "bimetal/launch/local/pipe.h"

namespace bimetal::launch {
namespace {

using Json = nlohmann::json;

ErrorCode code_from_name(std::string_view name) {
  for (int i = 0; i < static_cast<int>(ErrorCode::Internal); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    if (to_string(code) == name) return code;
  }
  return ErrorCode::Internal;
}

/// The text under `key`, empty where there is none.
std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// The same for whole numbers: -1.
std::int64_t number_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<std::int64_t>() : -1;
}

progress::Rescue rescue_of(const Json& json) {
  using State = progress::Rescue::State;
  const auto state = number_of(json, "state");
  const bool known = state >= 0 && state <= static_cast<int>(State::Failed);
  return {.state = known ? static_cast<State>(state) : State::Failed,
          .lost = static_cast<int>(number_of(json, "lost")),
          .step = number_of(json, "step"),
          .path = text_of(json, "path"),
          .cause = text_of(json, "cause")};
}

/// One line of JSON; bytes that are no UTF-8 (file names may hold any) are replaced, never fatal.
std::string one_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

FileDescriptor inherited_descriptor(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return {};
  FileDescriptor descriptor(std::atoi(text));
  set_close_on_exec(descriptor);
  ::unsetenv(variable);
  return descriptor;
}

StatusReporter::StatusReporter() : pipe_(inherited_descriptor(kStatusVariable)) {}

void StatusReporter::checkpoint(const std::string& path, std::int64_t step) {
  write_line(one_line({{"event", "checkpoint"}, {"path", path}, {"step", step}}));
}

void StatusReporter::failed(const Error& error) {
  Json json = {{"event", "error"}, {"code", to_string(error.code())}, {"message", error.what()}};
  if (error.rank()) json["rank"] = *error.rank();
  write_line(one_line(json));
}

void StatusReporter::rescue(const progress::Rescue& rescue) {
  write_line(one_line({{"event", "rescue"},
                       {"state", static_cast<int>(rescue.state)},
                       {"lost", rescue.lost},
                       {"step", rescue.step},
                       {"path", rescue.path},
                       {"cause", rescue.cause}}));
}

void StatusReporter::door(const std::string& address) {
  write_line(one_line({{"event", "door"}, {"address", address}}));
}

void StatusReporter::leads() {
  write_line(one_line({{"event", "leads"}}));
}

void StatusReporter::left() {
  write_line(one_line({{"event", "left"}}));
}

void StatusReporter::progress(const progress::Progress& progress) {
  write_line(one_line({{"event", "progress"},
                       {"epoch", progress.epoch},
                       {"epochs", progress.epochs},
                       {"step", progress.step},
                       {"steps", progress.steps},
                       {"loss", progress.loss},
                       {"samples_per_s", progress.samples_per_s},
                       {"efficiency", progress.efficiency},
                       {"shares", progress.shares}}));
}

void StatusReporter::evaluated(std::int64_t epoch, const progress::Evaluation& evaluation) {
  Json json;
  for (const auto& [name, value] : evaluation.metrics) json[name] = value;
  json.update({{"event", "evaluated"}, {"epoch", epoch}, {"loss", evaluation.loss}});
  if (evaluation.data != progress::kTestData) json["data"] = evaluation.data;
  write_line(one_line(json));
}

void StatusReporter::write_line(const std::string& line) {
  std::lock_guard lock(mutex_);
  if (pipe_ && !write_all(pipe_, line)) pipe_.close();
}

void RankStatus::feed(std::string_view bytes) {
  partial_ += bytes;
  for (auto end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n')) {
    take_line(std::string_view(partial_).substr(0, end));
    partial_.erase(0, end + 1);
  }
}

void RankStatus::take_line(std::string_view line) {
  const auto json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  const auto event = text_of(json, "event");
  if (event == "checkpoint") {
    last_checkpoint_ = text_of(json, "path");
  } else if (event == "rescue") {
    rescue_ = rescue_of(json);
    if (!rescue_->path.empty()) last_checkpoint_ = rescue_->path;
  } else if (event == "error" && !error_) {
    std::optional<int> rank;
    if (json.contains("rank") && json["rank"].is_number_integer()) rank = json["rank"].get<int>();
    error_.emplace(code_from_name(text_of(json, "code")), text_of(json, "message"), rank);
  }
}

void watch_lifeline(int exit_status) {
  auto lifeline = inherited_descriptor(kLifelineVariable);
  if (!lifeline) return;
  std::thread([lifeline = std::move(lifeline), exit_status] {
    char byte = 0;
    while (::read(lifeline.number(), &byte, 1) < 0 && errno == EINTR) {
    }
    ::_exit(exit_status);
  }).detach();
}

}  // namespace bimetal::launch
