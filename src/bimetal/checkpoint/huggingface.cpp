#include "bimetal/checkpoint/huggingface.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/json.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/model_file.h"
#include "bimetal/checkpoint/slices/slice_file.h"

namespace bimetal::checkpoint {

struct StoredWeight {
  SafetensorsFile* file = nullptr;
  TensorEntry entry;
};
using StoredWeights = std::map<std::string, StoredWeight>;

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr auto kWeights = "model.safetensors";
constexpr auto kIndex = "model.safetensors.index.json";

/// Prefixes of the model within, which names may lack.
constexpr std::array<const char*, 2> kPrefixes = {"transformer.", "model."};

[[noreturn]] void damaged_index(const fs::path& index, const std::string& flaw) {
  throw Error(ErrorCode::CorruptData, fmt::format("{} is damaged: {}", index.string(), flaw));
}

/// The files that an index lists. Their names are data of strangers: they never lead out of the
/// folder.
std::set<std::string> listed_shards(const fs::path& index, std::string text) {
  const Json json = parse_json<Json>(text);
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

std::vector<fs::path> weight_files(const fs::path& folder) {
  if (fs::exists(folder / kWeights)) return {folder / kWeights};
  auto index = InputFile::find(folder / kIndex);
  if (!index) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} has neither {} nor {}: weights in other formats are to be saved "
                            "anew by transformers (save_pretrained)",
                            folder.string(), kWeights, kIndex));
  }
  std::vector<fs::path> files;
  for (const auto& shard : listed_shards(folder / kIndex, index->read_all())) {
    if (!fs::exists(folder / shard)) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("{} lists '{}', which is not there; fetch the folder anew",
                              (folder / kIndex).string(), shard));
    }
    files.push_back(folder / shard);
  }
  return files;
}

/// Constants that releases of transformers before 5 have stored beside the weights.
bool is_constant(std::string_view name) {
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{".attn.bias", ".attn.masked_bias",
                                              ".rotary_emb.inv_freq"},
      [&](std::string_view end) { return name.ends_with(end); });
}

/// The files' tensors under the model's names.
StoredWeights renamed(const StoredWeights& stored, const TensorMap& own,
                      const task::ModelState& model) {
  StoredWeights found;
  for (const auto& [name, weight] : stored) {
    auto ours = name;
    for (const char* prefix : kPrefixes) {
      if (!own.contains(ours) && own.contains(prefix + name)) ours = prefix + name;
    }
    const bool again = std::ranges::find(model.other_names, ours) != model.other_names.end();
    if (!own.contains(ours) && (again || is_constant(name))) continue;
    found.emplace(ours, weight);
  }
  return found;
}

std::string shape_text(c10::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool fits(const StoredWeight& weight, const torch::Tensor& tensor) {
  return tensor.sizes() == c10::IntArrayRef(weight.entry.shape) &&
         c10::isFloatingType(weight.entry.dtype);
}

/// All faults in one message: a user who has to mend a file wants to know them at once.
void require_all(const StoredWeights& stored, const TensorMap& own, const fs::path& folder) {
  std::vector<std::string> missing, extra, unfit;
  for (const auto& [name, tensor] : own) {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      missing.push_back(name);
    } else if (const auto& entry = found->second.entry; tensor.sizes() != entry.shape) {
      unfit.push_back(fmt::format("{} is {} and should be {}", name, shape_text(entry.shape),
                                  shape_text(tensor.sizes())));
    } else if (!fits(found->second, tensor)) {
      unfit.push_back(fmt::format("{} is of type {}", name, c10::toString(entry.dtype)));
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

struct HuggingFaceWeights::Impl {
  fs::path folder;
  std::deque<SafetensorsFile> files;
  StoredWeights stored;
  std::set<const void*> given;  ///< tensors that have their values: tied ones come again

  /// Under the model's name or a shorter one; nullptr: there is none.
  const StoredWeight* find(const std::string& name) const {
    auto found = stored.find(name);
    for (const std::string prefix : kPrefixes) {
      if (found != stored.end() || !name.starts_with(prefix)) continue;
      found = stored.find(name.substr(prefix.size()));
    }
    return found == stored.end() ? nullptr : &found->second;
  }
};

HuggingFaceWeights::HuggingFaceWeights(const fs::path& folder) : impl_(std::make_unique<Impl>()) {
  impl_->folder = folder;
  for (const auto& path : weight_files(folder)) {
    auto& file = impl_->files.emplace_back(path);
    for (const auto& entry : file.header().entries) {
      impl_->stored.emplace(entry.name, StoredWeight{&file, entry});
    }
  }
}

HuggingFaceWeights::~HuggingFaceWeights() = default;

void HuggingFaceWeights::read_into(const std::vector<task::NamedTensor>& tensors) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    if (!impl_->given.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const auto* const found = impl_->find(name);
    if (!found || !fits(*found, tensor)) continue;
    torch::Tensor(tensor).copy_(read(name, whole_slice(found->entry.shape)));
  }
}

torch::Tensor HuggingFaceWeights::read(const std::string& name, const Slice& wanted) {
  const auto* const found = impl_->find(name);
  if (!found || !lies_in(wanted, found->entry.shape)) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("the weights in {} have no such part of '{}'", impl_->folder.string(), name));
  }
  const auto& [file, entry] = *found;
  auto values = torch::empty(wanted.size, torch::dtype(entry.dtype));
  const auto width = c10::elementSize(entry.dtype);
  const std::span bytes(static_cast<std::byte*>(values.data_ptr()), values.nbytes());
  for (const auto& run : runs_of(wanted, entry.shape)) {
    file->read(entry, run.whole,
               bytes.subspan(static_cast<std::size_t>(run.part) * width,
                             static_cast<std::size_t>(run.count) * width));
  }
  return values;
}

void HuggingFaceWeights::require_fitting(const task::ModelState& model) const {
  const auto own = model_tensors(model);
  require_all(renamed(impl_->stored, own, model), own, impl_->folder);
}

void load_huggingface(const task::ModelState& model, const fs::path& folder) {
  HuggingFaceWeights weights(folder);
  weights.require_fitting(model);
  weights.read_into(model.parameters);
  weights.read_into(model.buffers);
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
