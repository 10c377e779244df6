#include "bimetal/train/report.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "bimetal/base/atomic_file.h"

namespace bimetal::train {

using Json = nlohmann::ordered_json;

// Found by nlohmann/json by their names.
static void to_json(Json& json, const WorkerReport& worker) {
  json = {{"rank", worker.rank},
          {"host", worker.host},
          {"device", worker.device},
          {"share", worker.share},
          {"samples", worker.samples},
          {"compute_s", worker.compute_s},
          {"communicate_s", worker.communicate_s},
          {"wait_s", worker.wait_s},
          {"samples_per_s_alone", worker.samples_per_s_alone}};
}

static void to_json(Json& json, const HistoryPoint& point) {
  json = {{"step", point.step},
          {"elapsed_s", point.elapsed_s},
          {"loss", point.loss},
          {"samples_per_s", point.samples_per_s},
          {"efficiency", point.efficiency},
          {"shares", point.shares}};
}

static void to_json(Json& json, const EvaluationPoint& point) {
  json = {
      {"step", point.step}, {"elapsed_s", point.elapsed_s}, {"test_accuracy", point.test_accuracy}};
}

static void to_json(Json& json, const ServedWorkerReport& worker) {
  json = {{"rank", worker.rank},
          {"updates", worker.updates},
          {"staleness_mean", worker.staleness_mean},
          {"staleness_max", worker.staleness_max},
          {"dropped", worker.dropped},
          {"state", worker.state}};
}

static void to_json(Json& json, const ServerReport& server) {
  json = {{"servers", server.servers},
          {"consistency", server.consistency},
          {"updates", server.updates},
          {"staleness_mean", server.staleness_mean},
          {"staleness_max", server.staleness_max},
          {"samples_repeated", server.samples_repeated},
          {"workers", server.workers}};
}

double last_accuracy(const std::vector<EvaluationPoint>& evaluations) {
  return evaluations.empty() ? std::numeric_limits<double>::quiet_NaN()
                             : evaluations.back().test_accuracy;
}

std::string to_json(const Report& report) {
  Json json = {{"world_size", report.world_size},
               {"steps", report.steps},
               {"elapsed_s", report.elapsed_s},
               {"samples_per_s", report.samples_per_s},
               {"efficiency", report.efficiency},
               {"train_loss", report.train_loss},
               {"test_accuracy", report.test_accuracy},
               {"bytes_sent", report.bytes_sent},
               {"interrupted", report.interrupted},
               {"workers", report.workers},
               {"history", report.history},
               {"evaluations", report.evaluations}};
  if (report.server) json["server"] = *report.server;
  // Numbers that are not finite become null here; a host name in no known encoding is no reason to
  // lose the report.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_report(const Report& report, const std::filesystem::path& path) {
  write_file_atomically(path, to_json(report));
}

}  // namespace bimetal::train
