#pragma once
// config.json of a Hugging Face folder: which language model lies there. Fields:
// https://huggingface.co/docs/transformers (GPT2Config, LlamaConfig).

#include <filesystem>
#include <string>

#include "bimetal/models/language/language_config.h"

namespace bimetal::checkpoint {

/// Reads FOLDER/config.json of model_type "gpt2" or "llama". Keys that do not change what is
/// computed are passed over. Errors: InvalidArgument if there is none, for an unknown model_type
/// (the known ones are named) and for what our models do not compute (rope_scaling, biases, another
/// activation, …; the key is named); CorruptData if it is no JSON or a value is of the wrong type.
models::LanguageModelConfig read_huggingface_config(const std::filesystem::path& folder);

/// The text of a config.json of which transformers makes the same model.
std::string huggingface_config_text(const models::LanguageModelConfig& config);

}  // namespace bimetal::checkpoint
