#include "bimetal/checkpoint/huggingface.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/atomic_file.h"
#include "bimetal/base/error.h"
#include "bimetal/base/input_file.h"
#include "bimetal/base/os_files.h"
#include "bimetal/base/temporary_path.h"
#include "bimetal/checkpoint/model_file.h"
#include "bimetal/checkpoint/new_folder.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr auto kWeights = "model.safetensors";
constexpr auto kIndex = "model.safetensors.index.json";

[[noreturn]] void damaged_index(const fs::path& index, const std::string& flaw) {
  throw Error(ErrorCode::CorruptData, fmt::format("{} is damaged: {}", index.string(), flaw));
}

/// The files that an index lists. Their names are data of strangers: they never lead out of the
/// folder.
std::set<std::string> listed_shards(const fs::path& index, std::string text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    damaged_index(index, "it has no weight_map");
  }
  std::set<std::string> shards;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string()) damaged_index(index, fmt::format("'{}' lies in no file", name));
    const auto shard = file.get<std::string>();
    if (shard.empty() || shard == ".." || fs::path(shard).filename() != shard) {
      damaged_index(index, fmt::format("'{}' cannot lie in '{}'", name, shard));
    }
    shards.insert(shard);
  }
  return shards;
}

TensorMap read_weights(const fs::path& folder) {
  if (fs::exists(folder / kWeights)) return read_safetensors(folder / kWeights);
  auto index = InputFile::find(folder / kIndex);
  if (!index) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} has neither {} nor {}: weights in other formats are to be saved "
                            "anew by transformers (save_pretrained)",
                            folder.string(), kWeights, kIndex));
  }
  TensorMap all;
  for (const auto& shard : listed_shards(folder / kIndex, index->read_all())) {
    if (!fs::exists(folder / shard)) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("{} lists '{}', which is not there; fetch the folder anew",
                              (folder / kIndex).string(), shard));
    }
    all.merge(read_safetensors(folder / shard));
  }
  return all;
}

/// Constants that releases of transformers before 5 have stored beside the weights.
bool is_constant(std::string_view name) {
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{".attn.bias", ".attn.masked_bias",
                                              ".rotary_emb.inv_freq"},
      [&](std::string_view end) { return name.ends_with(end); });
}

/// The file's tensors under the model's names.
TensorMap renamed(TensorMap stored, const TensorMap& own, const task::ModelState& model) {
  TensorMap found;
  for (auto& [name, tensor] : stored) {
    auto ours = name;
    for (const char* prefix : {"transformer.", "model."}) {
      if (!own.contains(ours) && own.contains(prefix + name)) ours = prefix + name;
    }
    const bool again = std::ranges::find(model.other_names, ours) != model.other_names.end();
    if (!own.contains(ours) && (again || is_constant(name))) continue;
    found.emplace(ours, std::move(tensor));
  }
  return found;
}

std::string shape_text(const torch::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

/// All that does not fit, in one message: who has to mend a file wants to know at once.
void require_fitting(const TensorMap& stored, const TensorMap& own, const fs::path& folder) {
  std::vector<std::string> missing, extra, unfit;
  for (const auto& [name, tensor] : own) {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      missing.push_back(name);
    } else if (found->second.sizes() != tensor.sizes()) {
      unfit.push_back(fmt::format("{} is {} and should be {}", name, shape_text(found->second),
                                  shape_text(tensor)));
    } else if (!found->second.is_floating_point()) {
      unfit.push_back(
          fmt::format("{} is of type {}", name, c10::toString(found->second.scalar_type())));
    }
  }
  for (const auto& [name, tensor] : stored) {
    if (!own.contains(name)) extra.push_back(name);
  }
  std::string message;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) message += fmt::format("; {}: {}", what, fmt::join(names, ", "));
  };
  add("missing", missing);
  add("not of this model", extra);
  add("misshapen", unfit);
  if (message.empty()) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the weights in {} are not those of its config.json{}", folder.string(),
                          message));
}

}  // namespace

void load_huggingface(const task::ModelState& model, const fs::path& folder) {
  const auto own = model_tensors(model);
  const auto stored = renamed(read_weights(folder), own, model);
  require_fitting(stored, own, folder);
  copy_values(stored, own);
}

void save_huggingface(const task::ModelState& model, const models::LanguageModelConfig& config,
                      const fs::path& folder, const fs::path& tokenizer) {
  TemporaryPath fresh(place_of_new_folder(folder), TemporaryPath::Kind::folder);
  save_model(model, fresh.path() / kWeights);
  write_file_atomically(fresh.path() / "config.json", huggingface_config_text(config));
  if (!tokenizer.empty()) {
    write_file_atomically(fresh.path() / "tokenizer.json", InputFile(tokenizer).read_all());
    // By this transformers' AutoTokenizer knows what to make of it.
    write_file_atomically(fresh.path() / "tokenizer_config.json",
                          "{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}\n");
  }
  sync_directory(fresh.path());
  fresh.move_into_place();
}

}  // namespace bimetal::checkpoint
