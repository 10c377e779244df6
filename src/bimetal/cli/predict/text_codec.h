#pragma once
// Text to tokens and back, as the text was tokenized that a model has learnt from.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace bimetal::cli {

/// The tokenizer.json of Hugging Face's library that `tokenizer` names: itself, or in that folder.
/// Empty for "bytes" and for what `bimetal data tokenize` keeps for it. Error(System) if it cannot
/// be read.
std::filesystem::path tokenizer_file(const std::string& tokenizer);

/// The tokenizer of `run`, which is a checkpoint, a folder of them or a Hugging Face folder: the
/// tokenizer.json there or beside it, else "bytes" for a vocabulary of 256. Error(InvalidArgument)
/// asks for --tokenizer.
std::string tokenizer_of(const std::filesystem::path& run, std::int64_t vocabulary);

class TextCodec {
 public:
  /// `tokenizer`: as for tokenizer_file(), with its errors; for all but bytes Python does the work.
  /// `vocabulary`: the model's.
  TextCodec(const std::string& tokenizer, std::int64_t vocabulary);

  /// Each byte is a token: pieces of text may be shown as they come.
  bool bytes() const noexcept { return file_.empty(); }

  /// Errors: InvalidArgument if the tokenizer is none, or has tokens that the model does not know;
  /// System and Unsupported if there is no Python with Hugging Face's tokenizers.
  std::vector<std::int64_t> encode(const std::string& text) const;
  /// Tokens that no text has become U+FFFD. Errors likewise.
  std::string decode(const std::vector<std::int64_t>& tokens) const;

 private:
  void require_known(std::int64_t vocabulary) const;

  std::filesystem::path file_;
  std::int64_t vocabulary_;
};

/// Prints a text as it grows, where its tokens are bytes: other tokens have a meaning only among
/// their neighbours, and are shown at the end. As JSON the whole text is. Use from one thread.
class ShownText {
 public:
  /// `codec` must outlive it. Errors: its.
  ShownText(const std::string& prompt, const TextCodec& codec, bool as_json);

  const std::vector<std::int64_t>& prompt() const noexcept { return prompt_; }

  void add(const std::vector<std::int64_t>& tokens);
  void finish() const;

 private:
  const TextCodec& codec_;
  const bool as_json_, grows_;
  std::vector<std::int64_t> tokens_;
  const std::vector<std::int64_t> prompt_;
};

}  // namespace bimetal::cli
