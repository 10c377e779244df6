#include "bimetal/monitor/status.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "bimetal/base/error.h"

namespace bimetal::monitor {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTestLoss = "test_loss";
constexpr const char* kValidationLoss = "validation_loss";

/// The prefix of a field: "test_" of "test_accuracy".
std::string prefix_of(std::string_view field) {
  return std::string(field.substr(0, field.find('_') + 1));
}

class JsonWriter {
 public:
  explicit JsonWriter(Json& json) : json_(json) {}

  template <typename Value>
  void operator()(const char* name, const Value& value) {
    json_[name] = value;
  }
  template <typename Value>
  void operator()(const char* name, const std::optional<Value>& value) {
    json_[name] = value ? Json(*value) : Json();
  }
  /// One field for each; without any, the most usual one is null.
  void operator()(const char* otherwise, const progress::Metrics& metrics) {
    if (metrics.empty()) json_[otherwise] = nullptr;
    for (const auto& [name, value] : metrics) json_[prefix_of(otherwise) + name] = value;
  }

 private:
  Json& json_;
};

class JsonReader {
 public:
  explicit JsonReader(const Json& json) : json_(json) {}

  template <typename Value>
  void operator()(const char* name, Value& value) {
    json_.at(name).get_to(value);
  }
  /// A number that is not finite was written as null.
  void operator()(const char* name, double& value) {
    const auto& found = json_.at(name);
    value = found.is_null() ? std::nan("") : found.get<double>();
  }
  template <typename Value>
  void operator()(const char* name, std::optional<Value>& value) {
    const auto& found = json_.at(name);
    value = found.is_null() ? std::nullopt : std::optional(found.get<Value>());
  }
  void operator()(const char* otherwise, progress::Metrics& metrics) {
    const auto prefix = prefix_of(otherwise);
    for (const auto& [key, value] : json_.items()) {
      if (!key.starts_with(prefix) || key == prefix + "loss" || value.is_null()) continue;
      metrics.push_back({key.substr(prefix.size()), value.get<double>()});
    }
  }

 private:
  const Json& json_;
};

/// The one list of a worker's fields, for writing and for reading.
template <typename Visitor, typename Worker>
void visit_worker(Visitor visit, Worker& worker) {
  visit("rank", worker.rank);
  visit("gone", worker.gone);
  visit("silent_s", worker.silent_s);
  visit("host", worker.host);
  visit("device", worker.device);
  visit("stage", worker.stage);
  visit("share", worker.share);
  visit("memory_bytes", worker.memory_bytes);
  visit("samples_per_s_alone", worker.samples_per_s_alone);
  visit("samples_per_s", worker.samples_per_s);
  visit("wait_part", worker.wait_part);
  visit("bytes_per_s", worker.bytes_per_s);
  visit("staleness", worker.staleness);
  visit("staleness_max", worker.staleness_max);
  visit("samples", worker.samples);
  visit("compute_s", worker.compute_s);
  visit("communicate_s", worker.communicate_s);
  visit("wait_s", worker.wait_s);
  visit("bytes_sent", worker.bytes_sent);
}

/// The same for all but the workers.
template <typename Visitor, typename AnyStatus>
void visit_job(Visitor visit, AnyStatus& status) {
  visit("started_at", status.started_at);
  visit("phase", status.phase);
  visit("epoch", status.epoch);
  visit("epochs", status.epochs);
  visit("step", status.step);
  visit("steps", status.steps);
  visit("elapsed_s", status.elapsed_s);
  visit("since_step_s", status.since_step_s);
  visit("loss", status.loss);
  visit("samples_per_s", status.samples_per_s);
  visit("learning_rate", status.learning_rate);
  visit("loss_scale", status.loss_scale);
  visit("counts", status.counts);
  visit("efficiency", status.efficiency);
  visit("seconds_left", status.seconds_left);
  visit("test_accuracy", status.test_metrics);
  visit(kTestLoss, status.test_loss);
  visit("validation_accuracy", status.validation_metrics);
  visit(kValidationLoss, status.validation_loss);
  visit("schedule", status.schedule);
  visit("micro_batches", status.micro_batches);
  visit("workers_lost", status.workers_lost);
  visit("workers_left", status.workers_left);
  visit("workers_joined", status.workers_joined);
  visit("change_s", status.change_s);
  visit("notices", status.notices);
}

}  // namespace

std::string to_json(const Status& status) {
  Json json;
  visit_job(JsonWriter(json), status);
  json["workers"] = Json::array();
  for (const auto& worker : status.workers) {
    Json entry;
    visit_worker(JsonWriter(entry), worker);
    json["workers"].push_back(std::move(entry));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status parse_status(std::string_view text) {
  try {
    const auto json = Json::parse(text);
    Status status;
    visit_job(JsonReader(json), status);
    for (const auto& entry : json.at("workers")) {
      visit_worker(JsonReader(entry), status.workers.emplace_back());
    }
    return status;
  } catch (const Json::exception&) {  // its text would quote a stranger's bytes
    throw Error(ErrorCode::ProtocolMismatch,
                "what answers there tells no status of a job, or is another version of Bimetal");
  }
}

}  // namespace bimetal::monitor
