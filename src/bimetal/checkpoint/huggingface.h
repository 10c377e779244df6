#pragma once
// Folders as Hugging Face's transformers has them: config.json, and the weights as
// model.safetensors or in shards that model.safetensors.index.json lists. Names and shapes are
// those of our language models, so that nothing is transposed.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/checkpoint/slices/tensor_index.h"
#include "bimetal/models/language/language_model.h"
#include "bimetal/task/task.h"

namespace bimetal::checkpoint {

/// Reads the folder's weights (float16, bfloat16, float32, float64) into a model of its
/// config.json, in the model's own type. Names may lack the prefix of the model within
/// (`transformer.`, `model.`); masks and the like that old files hold, and further names of tied
/// tensors, are passed over. Everything is checked before anything is changed. Errors:
/// InvalidArgument if there are no weights, and for tensors that are missing, too many, of another
/// shape or no floating-point numbers, all of them named; CorruptData for damaged files.
void load_huggingface(const task::ModelState& model, const std::filesystem::path& folder);

/// The same for a model that is never whole in memory. Use from one thread.
class HuggingFaceWeights {
 public:
  /// Opens the folder's files, and reads nothing of the weights. Errors: InvalidArgument if there
  /// are none; CorruptData.
  explicit HuggingFaceWeights(const std::filesystem::path& folder);
  ~HuggingFaceWeights();
  HuggingFaceWeights(const HuggingFaceWeights&) = delete;
  HuggingFaceWeights& operator=(const HuggingFaceWeights&) = delete;

  /// Gives those tensors their values, one after the other; once, where several units have one.
  /// Those that do not fit stay as they are.
  void read_into(const std::vector<task::NamedTensor>& tensors);

  /// The slice `wanted` of the tensor that the model calls `name`, in the slice's shape, in the
  /// file's type and on the CPU. For models that fit.
  torch::Tensor read(const std::string& name, const Slice& wanted);

  /// `model`: all of it, for its names and shapes. Error(InvalidArgument) names all that does not
  /// fit.
  void require_fitting(const task::ModelState& model) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes a folder that transformers loads: it appears whole, and takes the place of an empty one.
/// `tokenizer`: a tokenizer.json to copy; empty: none. Errors: InvalidArgument if something lies in
/// `folder`; System.
void save_huggingface(const task::ModelState& model, const models::LanguageModelConfig& config,
                      const std::filesystem::path& folder,
                      const std::filesystem::path& tokenizer = {});

// config.json of a Hugging Face folder: which language model lies there. Fields:
// https://huggingface.co/docs/transformers (GPT2Config, LlamaConfig).

/// Reads FOLDER/config.json of model_type "gpt2" or "llama". Keys that do not change the
/// computation are passed over. Errors: InvalidArgument if there is none, for an unknown model_type
/// (the known ones are named) and for features that our models do not compute (rope_scaling,
/// biases, another activation, …; the key is named); CorruptData if it is no JSON or a value is of
/// the wrong type.
models::LanguageModelConfig read_huggingface_config(const std::filesystem::path& folder);

/// The text of a config.json of which transformers makes the same model.
std::string huggingface_config_text(const models::LanguageModelConfig& config);

}  // namespace bimetal::checkpoint
