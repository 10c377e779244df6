#include "bimetal/checkpoint/checkpoint_manifest.h"

#include <fmt/format.h>
#include <sodium.h>

#include <cmath>
#include <limits>
#include <system_error>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/json.h"
#include "bimetal/checkpoint/slices/slice_file.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Of whole tensors, and of slices.
constexpr int kWholeVersion = 1, kSlicesVersion = 2;
constexpr int kBase64 = sodium_base64_VARIANT_ORIGINAL;
constexpr auto kChecksum = "sha256";

[[noreturn]] void report_damage(const std::string& origin, const std::string& flaw) {
  throw Error(ErrorCode::CorruptData, fmt::format("{} is damaged: {}", origin, flaw));
}

[[noreturn]] void damaged(const fs::path& path, const std::string& flaw) {
  report_damage(path.string(), flaw);
}

std::string to_base64(const std::vector<std::uint8_t>& bytes) {
  std::string text(sodium_base64_encoded_len(bytes.size(), kBase64), '\0');
  sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(), kBase64);
  text.pop_back();  // the terminating zero
  return text;
}

/// Empty if `text` is no base64.
std::vector<std::uint8_t> from_base64(const std::string& text) {
  std::vector<std::uint8_t> bytes(text.size());
  std::size_t size = 0;
  const int failed = sodium_base642bin(bytes.data(), bytes.size(), text.data(), text.size(),
                                       nullptr, &size, nullptr, kBase64);
  bytes.resize(failed ? 0 : size);
  return bytes;
}

Json state_json(const TrainingState& state) {
  return {{"step", state.step},
          {"epoch", state.position.epoch},
          {"offset", state.position.offset},
          {"seed", state.seed},
          {"global_batch", state.global_batch},
          {"shares", state.shares},
          {"term", state.term},
          {"torch_rng", to_base64(state.torch_rng)}};
}

TrainingState parse_state(const Json& json) {
  TrainingState state;
  json.at("step").get_to(state.step);
  json.at("epoch").get_to(state.position.epoch);
  json.at("offset").get_to(state.position.offset);
  json.at("seed").get_to(state.seed);
  json.at("global_batch").get_to(state.global_batch);
  json.at("shares").get_to(state.shares);
  json.at("term").get_to(state.term);
  state.torch_rng = from_base64(json.at("torch_rng").get<std::string>());
  return state;
}

Json language_json(const models::LanguageModelConfig& model) {
  return {{"family", model.family},   {"layers", model.layers},         {"width", model.width},
          {"heads", model.heads},     {"kv_heads", model.kv_heads},     {"hidden", model.hidden},
          {"context", model.context}, {"vocabulary", model.vocabulary}, {"dropout", model.dropout},
          {"epsilon", model.epsilon}, {"rope_theta", model.rope_theta}, {"tied", model.tied}};
}

models::LanguageModelConfig parse_language(const Json& json) {
  models::LanguageModelConfig model;
  json.at("family").get_to(model.family);
  json.at("layers").get_to(model.layers);
  json.at("width").get_to(model.width);
  json.at("heads").get_to(model.heads);
  json.at("kv_heads").get_to(model.kv_heads);
  json.at("hidden").get_to(model.hidden);
  json.at("context").get_to(model.context);
  json.at("vocabulary").get_to(model.vocabulary);
  json.at("dropout").get_to(model.dropout);
  json.at("epsilon").get_to(model.epsilon);
  json.at("rope_theta").get_to(model.rope_theta);
  json.at("tied").get_to(model.tied);
  return model;
}

Json model_json(const ModelDescription& model) {
  Json json = {{"name", model.name},     {"hidden", model.hidden}, {"channels", model.channels},
               {"height", model.height}, {"width", model.width},   {"classes", model.classes},
               {"dtype", model.dtype},   {"mean", model.mean},     {"stddev", model.stddev}};
  if (model.norm_group > 0) json["norm_group"] = model.norm_group;
  if (model.language) json["language"] = language_json(*model.language);
  return json;
}

ModelDescription parse_model(const Json& json) {
  ModelDescription model;
  json.at("name").get_to(model.name);
  json.at("hidden").get_to(model.hidden);
  json.at("channels").get_to(model.channels);
  json.at("height").get_to(model.height);
  json.at("width").get_to(model.width);
  json.at("classes").get_to(model.classes);
  json.at("dtype").get_to(model.dtype);
  json.at("mean").get_to(model.mean);
  json.at("stddev").get_to(model.stddev);
  model.norm_group = json.value("norm_group", model.norm_group);
  if (json.contains("language")) model.language = parse_language(json.at("language"));
  return model;
}

Json scaler_json(const precision::LossScalerState& scaler) {
  return {{"scale", scaler.scale},
          {"growth_steps", scaler.growth_steps},
          {"skipped", scaler.skipped},
          {"tolerated", scaler.tolerated}};
}

precision::LossScalerState parse_scaler(const Json& json) {
  precision::LossScalerState scaler;
  json.at("scale").get_to(scaler.scale);
  json.at("growth_steps").get_to(scaler.growth_steps);
  json.at("skipped").get_to(scaler.skipped);
  json.at("tolerated").get_to(scaler.tolerated);
  return scaler;
}

void put_state(Json& json, const TrainingState& state) {
  json["state"] = state_json(state);
  if (state.loss_scaler) json["loss_scaler"] = scaler_json(*state.loss_scaler);
  if (state.model) json["model"] = model_json(*state.model);
}

/// False for a number that no training reaches: computing with it would overflow.
bool is_count(std::int64_t number) {
  return number >= 0 && number < std::int64_t{1} << 48;
}

/// `global_batch` 0: who saved it, a loop in Python, did not know.
void require_possible(const TrainingState& state, const std::string& origin) {
  const auto require = [&](bool possible, const char* what, std::int64_t value) {
    if (!possible) report_damage(origin, fmt::format("{} is {}", what, value));
  };
  require(is_count(state.step), "step", state.step);
  require(is_count(state.position.epoch), "epoch", state.position.epoch);
  require(is_count(state.position.offset), "offset", state.position.offset);
  require(is_count(state.global_batch), "global_batch", state.global_batch);
  require(state.global_batch > 0 || state.shares.empty(), "global_batch", state.global_batch);
  for (const auto share : state.shares) require(is_count(share), "a share", share);
  if (!state.loss_scaler) return;
  const auto& scaler = *state.loss_scaler;
  if (!(scaler.scale > 0) || !std::isfinite(scaler.scale)) {
    report_damage(origin, fmt::format("the loss scale is {}", scaler.scale));
  }
  require(is_count(scaler.growth_steps), "growth_steps", scaler.growth_steps);
  require(is_count(scaler.skipped), "skipped", scaler.skipped);
}

TrainingState take_state(const Json& json, const std::string& origin) {
  auto state = parse_state(json.at("state"));
  if (json.contains("loss_scaler")) state.loss_scaler = parse_scaler(json.at("loss_scaler"));
  if (json.contains("model")) state.model = parse_model(json.at("model"));
  require_possible(state, origin);
  return state;
}

Json slices_json(const SliceIndex& index) {
  return {{"ranks", index.ranks},
          {"model", index_json(index.model)},
          {"optimizer", index_json(index.optimizer)}};
}

SliceIndex parse_slices(const Json& json, const std::string& origin) {
  SliceIndex index{.ranks = json.at("ranks").get<int>(),
                   .model = parse_index(json.at("model"), origin),
                   .optimizer = parse_index(json.at("optimizer"), origin)};
  require_complete(index.model, origin);
  require_complete(index.optimizer, origin);
  return index;
}

/// Names in a state.json never lead out of its folder.
void require_known_files(const Manifest& manifest, const fs::path& path) {
  for (const auto& [name, file] : manifest.files) {
    if (name.empty() || name == ".." || fs::path(name).filename() != name) {
      damaged(path, fmt::format("'{}' is no name of a file", name));
    }
  }
  if (!manifest.slices) return;
  for (const auto* index : {&manifest.slices->model, &manifest.slices->optimizer}) {
    for (const auto& [name, tensor] : *index) {
      for (const auto& slice : tensor.slices) {
        if (manifest.files.contains(slice.file)) continue;
        damaged(path, fmt::format("a slice of '{}' is in no file of it", name));
      }
    }
  }
}

Manifest parse_manifest(const Json& json, const fs::path& path) {
  Manifest manifest;
  manifest.sequence = json.at("sequence").get<std::uint64_t>();
  manifest.state = take_state(json, path.string());
  manifest.optimizer = json.at("optimizer").at("kind").get<std::string>();
  manifest.optimizer_groups = json.at("optimizer").at("groups");
  manifest.files = parse_files(json.at("files"));
  manifest.loop = json.value("loop", "");
  if (json.contains("slices")) {
    manifest.slices = parse_slices(json.at("slices"), path.string());
  } else {
    for (const char* name : {kModelFile, kOptimizerFile}) json.at("files").at(name);
  }
  require_known_files(manifest, path);
  return manifest;
}

/// The checksum covers the text of everything before it, as this program would write it.
void verify_checksum(Json& json, const fs::path& path) {
  const auto found = json.find(kChecksum);
  const std::string stored =
      found == json.end() || !found->is_string() ? "" : found->get<std::string>();
  json.erase(kChecksum);
  if (stored != sha256_of(json.dump())) damaged(path, "its checksum is wrong");
}

FileRecord record_file(const fs::path& path) {
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) throw system_error("cannot read " + path.string(), error);
  return {size, sha256_of_file(path)};
}

std::string manifest_text(const fs::path& path) {
  auto file = InputFile::find(path);
  if (!file) damaged(path, "it is missing");
  std::error_code ignored;  // where it cannot be told, reading does
  if (fs::is_directory(path, ignored)) damaged(path, "it is a folder");
  return file->read_all();
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  Json json = {{"format_version", manifest.slices ? kSlicesVersion : kWholeVersion},
               {"sequence", manifest.sequence}};
  put_state(json, manifest.state);
  json["optimizer"] = {{"kind", manifest.optimizer}, {"groups", manifest.optimizer_groups}};
  json["files"] = files_json(manifest.files);
  if (!manifest.loop.empty()) json["loop"] = manifest.loop;
  if (manifest.slices) json["slices"] = slices_json(*manifest.slices);
  json[kChecksum] = sha256_of(json.dump());
  return json.dump(2) + "\n";
}

std::string state_text(const TrainingState& state) {
  Json json;
  put_state(json, state);
  return json.dump();
}

TrainingState parse_state_text(std::string_view text, const std::string& origin) {
  const Json json = parse_json<Json>(text);
  if (!json.is_object()) report_damage(origin, "it is no JSON object");
  try {
    return take_state(json, origin);
  } catch (const nlohmann::json::exception& error) {
    report_damage(origin, error.what());
  }
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kStateFile;
  Json json = parse_json<Json>(manifest_text(path));
  if (!json.is_object()) damaged(path, "it is no JSON object");
  const auto version = json.value("format_version", Json());
  if (version.is_number_integer() && version > kSlicesVersion) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("{} is of format {}; this program reads up to {}", path.string(),
                            version.get<std::int64_t>(), kSlicesVersion));
  }
  verify_checksum(json, path);
  try {
    return parse_manifest(json, path);
  } catch (const nlohmann::json::exception& error) {
    damaged(path, error.what());
  }
}

Json files_json(const FileRecords& files) {
  Json json = Json::object();
  for (const auto& [name, file] : files) {
    json[name] = {{"size", file.size}, {"sha256", file.sha256}};
  }
  return json;
}

FileRecords parse_files(const Json& json) {
  FileRecords files;
  for (const auto& [name, file] : json.items()) {
    files[name] = {file.at("size").get<std::uint64_t>(), file.at("sha256").get<std::string>()};
  }
  return files;
}

std::string index_text(const SliceIndex& index) {
  return slices_json(index).dump();
}

SliceIndex parse_index_text(std::string_view text, const std::string& origin) {
  const Json json = parse_json<Json>(text);
  if (!json.is_object()) report_damage(origin, "it is no JSON object");
  try {
    return parse_slices(json, origin);
  } catch (const nlohmann::json::exception& error) {
    report_damage(origin, error.what());
  }
}

FileRecords record_files(const fs::path& folder) {
  FileRecords files;
  for (const char* name : {kModelFile, kOptimizerFile}) files[name] = record_file(folder / name);
  if (fs::exists(folder / kFeedbackFile)) {
    files[kFeedbackFile] = record_file(folder / kFeedbackFile);
  }
  return files;
}

void verify_file(const fs::path& path, const FileRecord& expected) {
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (is_missing(error)) damaged(path, error.message());
  if (error) throw system_error("cannot read " + path.string(), error);
  if (size != expected.size) {
    damaged(path, fmt::format("it is {} bytes long instead of {}", size, expected.size));
  }
  if (sha256_of_file(path) != expected.sha256) damaged(path, "its checksum is wrong");
}

void verify_files(const Manifest& manifest, const fs::path& folder) {
  for (const auto& [name, expected] : manifest.files) verify_file(folder / name, expected);
}

}  // namespace bimetal::checkpoint
