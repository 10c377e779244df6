#include "bimetal/progress/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bimetal/base/files.h"
#include "bimetal/progress/members_change_json.h"
#include "bimetal/progress/together.h"

namespace bimetal::progress {

using Json = nlohmann::ordered_json;

// Found by nlohmann/json by their names.
static void to_json(Json& json, const MemoryReport& memory) {
  json = {{"peak_bytes", nullptr}, {"planned_bytes", nullptr}};
  if (memory.peak > 0) json["peak_bytes"] = memory.peak;
  if (memory.planned <= 0) return;
  json["planned_bytes"] = memory.planned;
  json["planned"] = {{"program", memory.program},
                     {"parameters", memory.parameters},
                     {"gradients", memory.gradients},
                     {"optimizer", memory.optimizer},
                     {"activations", memory.activations},
                     {"buffers", memory.buffers},
                     {"kept", memory.kept}};
}

static Json known_rate(double bytes, double seconds) {
  return seconds > 0 ? Json(bytes / seconds) : Json();
}

static void to_json(Json& json, const DiskReport& disk) {
  json = {{"kept_bytes", disk.kept_bytes},
          {"read_bytes", disk.read_bytes},
          {"read_s", disk.read_s},
          {"read_bytes_per_s", known_rate(disk.read_bytes, disk.read_s)},
          {"written_bytes", disk.written_bytes},
          {"write_s", disk.write_s > 0 ? Json(disk.write_s) : Json()},
          {"written_bytes_per_s", known_rate(disk.written_bytes, disk.write_s)},
          {"wait_s", disk.wait_s}};
}

static void to_json(Json& json, const OffloadReport& offload) {
  json = {{"folder", offload.folder}};
  if (offload.states) json["states"] = *offload.states;
  if (offload.parameters) json["parameters"] = *offload.parameters;
  json["copy"] = nullptr;
  if (!offload.copy) return;
  const auto& copy = *offload.copy;
  json["copy"] = {{"bytes", copy.written_bytes},
                  {"read_bytes_per_s", known_rate(copy.read_bytes, copy.read_s)},
                  {"written_bytes_per_s", known_rate(copy.written_bytes, copy.write_s)}};
}

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
  if (worker.memory.peak > 0 || worker.memory.planned > 0) json["memory"] = worker.memory;
  if (!worker.precision.empty()) json["precision"] = worker.precision;
  if (worker.offload) json["offload"] = *worker.offload;
}

static void to_json(Json& json, const LossScaleReport& report) {
  json = {{"scale", report.scale}, {"skipped_steps", report.skipped_steps}};
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
  json = {{"step", point.step}, {"elapsed_s", point.elapsed_s}};
  for (const auto& [name, value] : point.metrics) json[point.data + "_" + name] = value;
}

static void to_json(Json& json, const BestReport& best) {
  json = {{"step", best.step}};
  for (const auto& [name, value] : best.metrics) {
    json[fmt::format("{}_{}", kValidationData, name)] = value;
  }
  json[fmt::format("{}_loss", kValidationData)] = best.loss;
  json["checkpoint"] = best.checkpoint.empty() ? Json() : Json(best.checkpoint);
}

static void to_json(Json& json, const ServerWorkerReport& worker) {
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

static void to_json(Json& json, const BalanceRecord::Probe& probe) {
  json = {{"alpha_s", probe.alpha_s}, {"beta_s", probe.beta_s}};
}

static void to_json(Json& json, const BalanceRecord::Step& step) {
  json = {{"batch", step.batch}, {"compute_s", step.compute_s}};
  if (std::ranges::count(step.out_of_memory, true) > 0) json["out_of_memory"] = step.out_of_memory;
  if (std::ranges::all_of(step.shadow_batch, [](auto batch) { return batch == 0; })) return;
  json["shadow_batch"] = step.shadow_batch;
  json["shadow_s"] = step.shadow_s;
}

static void to_json(Json& json, const BalanceRecord& record) {
  json = {{"policy", record.policy},
          {"global_batch", record.global_batch},
          {"probes", record.probes},
          {"complete", record.complete},
          {"steps", record.steps}};
}

static void to_json(Json& json, const MeshReport& mesh) {
  json = {{"stages", mesh.stages},
          {"replicas", mesh.replicas},
          {"tensor", mesh.tensor},
          {"schedule", mesh.schedule},
          {"begins", mesh.begins}};
  if (!mesh.uneven.empty()) json["replicas"] = mesh.uneven;
  if (!mesh.parts.empty()) json["tensor"] = mesh.parts;
}

static void to_json(Json& json, const FastestAlone& fastest) {
  json = {{"rank", fastest.rank},
          {"samples_per_s_alone", fastest.samples_per_s_alone},
          {"job_relative", fastest.job_relative},
          {"time", fastest.time}};
}

Metrics last_metrics(const Report& report, std::string_view data) {
  for (auto point = report.evaluations.rbegin(); point != report.evaluations.rend(); ++point) {
    if (point->data == data) return point->metrics;
  }
  return {};
}

std::string to_json(const Report& report) {
  Json json = {{"world_size", report.world_size},
               {"steps", report.steps},
               {"elapsed_s", report.elapsed_s},
               {"counts", report.counts},
               {"samples_per_s", report.samples_per_s},
               {"efficiency", report.efficiency},
               {"alone_from", kAloneFrom},
               {"train_loss", report.train_loss}};
  const auto metrics = last_metrics(report);
  if (metrics.empty()) json["test_accuracy"] = nullptr;
  for (const auto& [name, value] : metrics) json["test_" + name] = value;
  for (const auto& [name, value] : last_metrics(report, kValidationData)) {
    json[fmt::format("{}_{}", kValidationData, name)] = value;
  }
  if (report.best) json["best"] = *report.best;
  json["bytes_sent"] = report.bytes_sent;
  json["interrupted"] = report.interrupted;
  json["workers"] = report.workers;
  json["history"] = report.history;
  json["evaluations"] = report.evaluations;
  if (report.server) json["server"] = *report.server;
  if (report.loss_scale) json["loss_scale"] = *report.loss_scale;
  if (const auto fastest = fastest_alone(report)) json["fastest_alone"] = *fastest;
  if (report.balance) json["balance"] = *report.balance;
  if (report.mesh) json["mesh"] = *report.mesh;
  if (!report.changes.empty()) json["changes"] = report.changes;
  // Numbers that are not finite become null here; a host name in no known encoding is no reason to
  // lose the report.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_report(const Report& report, const std::filesystem::path& path) {
  write_file_atomically(path, to_json(report));
}

void to_json(nlohmann::ordered_json& json, const MembersChange& change) {
  json = {{"step", change.step},      {"lost", change.lost},   {"left", change.left},
          {"joined", change.came},    {"cause", change.cause}, {"workers", change.workers},
          {"seconds", change.seconds}};
}

void from_json(const nlohmann::ordered_json& json, MembersChange& change) {
  json.at("step").get_to(change.step);
  json.at("lost").get_to(change.lost);
  json.at("left").get_to(change.left);
  json.at("joined").get_to(change.came);
  json.at("cause").get_to(change.cause);
  json.at("workers").get_to(change.workers);
  json.at("seconds").get_to(change.seconds);
}

}  // namespace bimetal::progress
