#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/json.h"
#include "bimetal/checkpoint/huggingface.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using models::LanguageModelConfig;

constexpr auto kFileName = "config.json";

/// The values of a config.json, and their faults. null is as good as absent.
class Fields {
 public:
  Fields(const Json& json, std::string file) : json_(json), file_(std::move(file)) {}

  std::int64_t whole(const char* key) const {
    const auto value = optional_whole(key);
    if (!value) throw corrupt(fmt::format("it has no {}", key));
    return *value;
  }
  std::optional<std::int64_t> optional_whole(const char* key) const {
    const Json* value = find(key);
    if (!value) return std::nullopt;
    if (!value->is_number_integer()) throw wrong(key, *value, "a whole number");
    return value->get<std::int64_t>();
  }
  double number(const char* key, double otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_number()) throw wrong(key, *value, "a number");
    return value->get<double>();
  }
  bool flag(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_boolean()) throw wrong(key, *value, "true or false");
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_string()) throw wrong(key, *value, "a text");
    return value->get<std::string>();
  }
  /// An object within, empty where there is none.
  Fields object(const char* key) const {
    static const Json empty = Json::object();
    const Json* value = find(key);
    if (value && !value->is_object()) throw wrong(key, *value, "an object");
    return {value ? *value : empty, file_};
  }

  bool has(const char* key) const { return find(key) != nullptr; }

  /// Our models know one value of this key only.
  void require(const char* key, bool value, bool otherwise) const {
    if (flag(key, otherwise) != value) throw unsupported(key, value ? "true" : "false");
  }
  void require(const char* key, std::initializer_list<std::string_view> values,
               const std::string& otherwise) const {
    const auto found = text(key, otherwise);
    if (std::ranges::find(values, found) == values.end()) {
      throw unsupported(key, fmt::format("\"{}\"", fmt::join(values, "\" or \"")));
    }
  }

  Error unsupported(const char* key, const std::string& known) const {
    return Error(ErrorCode::InvalidArgument,
                 fmt::format("{}: {} is {}, and this program computes such models with {} alone",
                             file_, key, has(key) ? find(key)->dump() : "absent", known));
  }
  Error corrupt(const std::string& flaw) const {
    return Error(ErrorCode::CorruptData, fmt::format("{} is damaged: {}", file_, flaw));
  }

 private:
  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  Error wrong(const char* key, const Json& value, std::string_view expected) const {
    return corrupt(fmt::format("{} is {}, not {}", key, value.dump(), expected));
  }

  const Json& json_;
  std::string file_;
};

/// transformers has a rate for each place; ours is one for all.
double one_dropout(const Fields& fields) {
  constexpr double kOfTransformers = 0.1;
  const auto rate = fields.number("resid_pdrop", kOfTransformers);
  for (const char* other : {"embd_pdrop", "attn_pdrop"}) {
    if (fields.number(other, kOfTransformers) == rate) continue;
    throw fields.unsupported(other, fmt::format("the rate of resid_pdrop, {}", rate));
  }
  return rate;
}

LanguageModelConfig gpt2_of(const Fields& fields) {
  fields.require("activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "gelu_new");
  fields.require("scale_attn_weights", true, true);
  fields.require("scale_attn_by_inverse_layer_idx", false, false);
  fields.require("add_cross_attention", false, false);
  LanguageModelConfig config{.family = "gpt2"};
  config.layers = fields.whole("n_layer");
  config.width = fields.whole("n_embd");
  config.heads = config.kv_heads = fields.whole("n_head");
  config.hidden = fields.optional_whole("n_inner").value_or(4 * config.width);
  config.context = fields.whole("n_positions");
  config.vocabulary = fields.whole("vocab_size");
  config.dropout = one_dropout(fields);
  config.epsilon = fields.number("layer_norm_epsilon", 1e-5);
  config.tied = fields.flag("tie_word_embeddings", true);
  return config;
}

/// transformers 5 has an object of its own for the former rope_theta and rope_scaling.
double rope_theta_of(const Fields& fields) {
  constexpr double kOfTransformers = 1e4;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = fields.object(key);
    const auto type = rope.text("rope_type", rope.text("type", "default"));
    if (type != "default") {
      throw fields.unsupported(key,
                               "rotary embeddings that are not scaled (rope_type \"default\")");
    }
  }
  return fields.object("rope_parameters")
      .number("rope_theta", fields.number("rope_theta", kOfTransformers));
}

LanguageModelConfig llama_of(const Fields& fields) {
  fields.require("hidden_act", {"silu", "swish"}, "silu");
  fields.require("attention_bias", false, false);
  fields.require("mlp_bias", false, false);
  if (fields.number("attention_dropout", 0) != 0)
    throw fields.unsupported("attention_dropout", "0");
  LanguageModelConfig config{.family = "llama"};
  config.layers = fields.whole("num_hidden_layers");
  config.width = fields.whole("hidden_size");
  config.heads = fields.whole("num_attention_heads");
  config.kv_heads = fields.optional_whole("num_key_value_heads").value_or(config.heads);
  config.hidden = fields.whole("intermediate_size");
  config.context = fields.whole("max_position_embeddings");
  config.vocabulary = fields.whole("vocab_size");
  config.epsilon = fields.number("rms_norm_eps", 1e-6);
  config.rope_theta = rope_theta_of(fields);
  config.tied = fields.flag("tie_word_embeddings", false);
  const auto head = fields.optional_whole("head_dim");
  if (head && *head * config.heads != config.width) {
    throw fields.unsupported("head_dim", "hidden_size ÷ num_attention_heads");
  }
  return config;
}

Json gpt2_json(const LanguageModelConfig& config) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"n_layer", config.layers},
          {"n_embd", config.width},
          {"n_head", config.heads},
          {"n_inner", config.hidden},
          {"n_positions", config.context},
          {"vocab_size", config.vocabulary},
          {"resid_pdrop", config.dropout},
          {"embd_pdrop", config.dropout},
          {"attn_pdrop", config.dropout},
          {"layer_norm_epsilon", config.epsilon},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false}};
}

/// transformers' Llama has no dropout but of attention's weights, so that ours is not in it.
Json llama_json(const LanguageModelConfig& config) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"num_hidden_layers", config.layers},
          {"hidden_size", config.width},
          {"num_attention_heads", config.heads},
          {"num_key_value_heads", config.kv_heads},
          {"head_dim", config.width / config.heads},
          {"intermediate_size", config.hidden},
          {"max_position_embeddings", config.context},
          {"vocab_size", config.vocabulary},
          {"rms_norm_eps", config.epsilon},
          {"rope_theta", config.rope_theta},
          {"rope_scaling", nullptr},
          {"attention_bias", false},
          {"mlp_bias", false}};
}

}  // namespace

LanguageModelConfig read_huggingface_config(const fs::path& folder) {
  const auto path = folder / kFileName;
  auto file = InputFile::find(path);
  if (!file) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("{} is no Hugging Face folder: it has no {}", folder.string(), kFileName));
  }
  const Json json = parse_json<Json>(file->read_all());
  if (!json.is_object()) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("{} is damaged: it is no JSON object", path.string()));
  }
  const Fields fields(json, path.string());
  const auto type = fields.text("model_type", "");
  if (type == "gpt2") return gpt2_of(fields);
  if (type == "llama") return llama_of(fields);
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{}: a model of type '{}' is unknown here; known are gpt2 and llama",
                          path.string(), type));
}

std::string huggingface_config_text(const LanguageModelConfig& config) {
  Json json = config.family == "gpt2" ? gpt2_json(config) : llama_json(config);
  json["tie_word_embeddings"] = config.tied;
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    json[key] = nullptr;  // the tokenizer's business; those of transformers may not even exist
  }
  return json.dump(2) + "\n";
}

}  // namespace bimetal::checkpoint
