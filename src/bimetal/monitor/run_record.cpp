#include "bimetal/monitor/run_record.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/json.h"
#include "bimetal/monitor/status.h"

namespace bimetal::monitor {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int kFormat = 1;
constexpr double kSilent_s = 60;  ///< a running one writes every few seconds
constexpr std::size_t kMostBytes = 4 << 20;
constexpr std::size_t kMostFolders = 10'000;
constexpr std::size_t kMostEvaluations = 1000;

Json or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

Json json_of(const std::vector<CurvePoint>& curve) {
  Json json;
  const auto column = [&](const char* name, auto CurvePoint::*value) {
    auto& list = json[name] = Json::array();
    for (const auto& point : curve) list.push_back(point.*value);
  };
  column("step", &CurvePoint::step);
  column("elapsed_s", &CurvePoint::elapsed_s);
  column("samples", &CurvePoint::samples);
  column("loss", &CurvePoint::loss);
  return json;
}

Json json_of(const RunRecord& record) {
  Json json = {{"format_version", kFormat}};
  if (!record.folder.empty()) json["name"] = record.folder.filename().string();
  json.update({{"state", record.state},
               {"started_at", record.started_at},
               {"updated_at", record.updated_at},
               {"host", record.host},
               {"address", record.address},
               {"workers", record.workers},
               {"counts", record.counts},
               {"epoch", record.epoch},
               {"epochs", record.epochs},
               {"step", record.step},
               {"steps", record.steps},
               {"elapsed_s", record.elapsed_s},
               {"samples", record.samples},
               {"loss", or_null(record.loss)},
               {"samples_per_s", or_null(record.samples_per_s)},
               {"efficiency", or_null(record.efficiency)}});
  json["curve"] = json_of(record.curve);
  auto& evaluations = json["evaluations"] = Json::array();
  const auto first =
      record.evaluations.size() - std::min(record.evaluations.size(), kMostEvaluations);
  for (auto i = first; i < record.evaluations.size(); ++i) {
    evaluations.push_back(json_of(record.evaluations[i]));
  }
  json["job"] = record.job;
  return json;
}

/// JSON has no numbers that are not finite: they are null.
double number_of(const Json& json) {
  return json.is_null() ? std::nan("") : json.get<double>();
}

std::optional<double> number_in(const Json& json, const char* name) {
  const auto& value = json.at(name);
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

std::vector<CurvePoint> curve_of(const Json& json) {
  const auto& steps = json.at("step");
  std::vector<CurvePoint> curve;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    curve.push_back({steps.at(i), number_of(json.at("elapsed_s").at(i)), json.at("samples").at(i),
                     number_of(json.at("loss").at(i))});
  }
  return curve;
}

EvaluatedAt evaluation_of(const Json& json) {
  EvaluatedAt at{json.at("step"), number_of(json.at("elapsed_s")), json.at("samples")};
  at.evaluation.data = json.at("data");
  at.evaluation.loss = number_of(json.at("loss"));
  for (const auto& [name, value] : json.at("metrics").items()) {
    at.evaluation.metrics.push_back({name, number_of(value)});
  }
  return at;
}

RunRecord record_of(const Json& json) {
  RunRecord record{.state = json.at("state"),
                   .started_at = json.at("started_at"),
                   .updated_at = json.at("updated_at"),
                   .host = json.at("host"),
                   .address = json.at("address"),
                   .workers = json.at("workers"),
                   .counts = json.at("counts"),
                   .epoch = json.at("epoch"),
                   .epochs = json.at("epochs"),
                   .step = json.at("step"),
                   .steps = json.at("steps"),
                   .elapsed_s = json.at("elapsed_s"),
                   .samples = json.at("samples"),
                   .loss = number_in(json, "loss"),
                   .samples_per_s = number_in(json, "samples_per_s"),
                   .efficiency = number_in(json, "efficiency"),
                   .job = json.at("job")};
  record.curve = curve_of(json.at("curve"));
  for (const auto& one : json.at("evaluations")) record.evaluations.push_back(evaluation_of(one));
  return record;
}

double seconds_since(fs::file_time_type time) {
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - time).count();
}

/// The newest of its checkpoints by their names; nothing where it has none.
std::optional<std::int64_t> last_step_in(const fs::path& folder) {
  constexpr std::string_view kPrefix = "step-";
  std::optional<std::int64_t> last;
  std::error_code error;
  std::size_t seen = 0;
  for (fs::directory_iterator entry(folder, error), end;
       !error && entry != end && seen < kMostFolders; entry.increment(error), ++seen) {
    const auto name = entry->path().filename().string();
    const auto digits = std::string_view(name).substr(std::min(kPrefix.size(), name.size()));
    if (!name.starts_with(kPrefix) || digits.empty() || digits.size() > 18 ||
        digits.find_first_not_of("0123456789") != digits.npos) {
      continue;
    }
    last = std::max<std::int64_t>(last.value_or(0), std::stoll(std::string(digits)));
  }
  return last;
}

struct Candidate {
  fs::path folder;
  double age_s = 0;
};

/// Folders in which something was written, the last one first.
std::vector<Candidate> candidates_in(const fs::path& parent) {
  std::vector<Candidate> all;
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end;
       !error && entry != end && all.size() < kMostFolders; entry.increment(error)) {
    std::error_code unknown;  // it may be gone again
    const auto& folder = entry->path();
    if (!entry->is_directory(unknown)) continue;
    auto time = fs::last_write_time(folder / kRunFile, unknown);
    if (unknown) time = fs::last_write_time(folder, unknown);
    if (!unknown) all.push_back({folder, seconds_since(time)});
  }
  std::ranges::sort(all, {}, &Candidate::age_s);
  return all;
}

}  // namespace

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(const EvaluatedAt& at) {
  Json metrics = Json::object();
  for (const auto& [name, value] : at.evaluation.metrics) metrics[name] = value;
  return {{"step", at.step},
          {"elapsed_s", at.elapsed_s},
          {"samples", at.samples},
          {"data", at.evaluation.data},
          {"loss", at.evaluation.loss},
          {"metrics", metrics}};
}

std::string to_json(const RunRecord& record) {
  return text_of(json_of(record)) + "\n";
}

std::string to_json(const std::vector<RunRecord>& records) {
  auto list = Json::array();
  for (const auto& record : records) list.push_back(json_of(record));
  return text_of(list);
}

std::optional<RunRecord> parse_run_record(std::string_view text) {
  try {
    const auto json = parse_json<Json>(text);
    if (!json.is_object() || json.value("format_version", 0) != kFormat) return std::nullopt;
    return record_of(json);
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::optional<RunRecord> read_run_record(const fs::path& folder) {
  try {
    std::error_code error;
    const auto path = folder / kRunFile;
    if (!fs::is_regular_file(path, error) || fs::file_size(path, error) > kMostBytes || error) {
      return std::nullopt;
    }
    auto record = parse_run_record(InputFile(path).read_all());
    if (record) record->folder = folder;
    return record;
  } catch (const Error&) {  // it is gone meanwhile, or somebody else's
    return std::nullopt;
  }
}

std::vector<RunRecord> list_runs(const fs::path& parent, std::size_t most) {
  std::vector<RunRecord> runs;
  for (const auto& [folder, age_s] : candidates_in(parent)) {
    if (runs.size() == most) break;
    if (auto record = read_run_record(folder)) {
      if (record->state == "running" && age_s > kSilent_s) record->state = "lost";
      runs.push_back(std::move(*record));
    } else if (const auto step = last_step_in(folder)) {
      runs.push_back({.folder = folder, .updated_at = unix_time() - age_s, .step = *step});
    }
  }
  return runs;
}

std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& curve) {
  const auto each = (curve.size() + RunRecord::kMostPoints - 1) / RunRecord::kMostPoints;
  if (each <= 1) return curve;
  std::vector<CurvePoint> few;
  for (std::size_t begin = 0; begin < curve.size(); begin += each) {
    const auto end = std::min(begin + each, curve.size());
    auto point = curve[end - 1];
    point.loss = 0;
    for (auto i = begin; i < end; ++i)
      point.loss += curve[i].loss / static_cast<double>(end - begin);
    few.push_back(point);
  }
  return few;
}

}  // namespace bimetal::monitor
