#include "bimetal/cli/predict/text_codec.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr auto kBytes = "bytes";
constexpr auto kFileName = "tokenizer.json";
constexpr auto kModule = "bimetal.data.text";
constexpr std::int64_t kByteVocabulary = 256;
constexpr auto kUnknown = "\xEF\xBF\xBD";  // U+FFFD

bool means_bytes(const fs::path& file) {
  const Json json = Json::parse(InputFile(file).read_all(), nullptr, /*allow_exceptions=*/false);
  return json.is_string() && json.get<std::string>() == kBytes;
}

Json ask(const Json& question) {
  const auto said =
      ask_python(kModule, question.dump(-1, ' ', false, Json::error_handler_t::replace));
  const Json answer = Json::parse(said, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) {
    throw Error(ErrorCode::System, fmt::format("python -m {} said: {}", kModule, said));
  }
  if (answer.contains("error")) {
    const auto code = answer.value("code", "") == to_string(ErrorCode::Unsupported)
                          ? ErrorCode::Unsupported
                          : ErrorCode::InvalidArgument;
    throw Error(code, answer["error"].get<std::string>());
  }
  return answer;
}

}  // namespace

fs::path tokenizer_file(const std::string& tokenizer) {
  if (tokenizer == kBytes) return {};
  const fs::path named =
      fs::is_directory(tokenizer) ? fs::path(tokenizer) / kFileName : fs::path(tokenizer);
  return means_bytes(named) ? fs::path() : fs::absolute(named);
}

std::string tokenizer_of(const fs::path& run, std::int64_t vocabulary) {
  std::error_code ignored;  // a path that cannot be looked at counts as not there
  for (const auto& folder : {run, fs::absolute(run).parent_path()}) {
    if (fs::exists(folder / kFileName, ignored)) return (folder / kFileName).string();
  }
  if (vocabulary == kByteVocabulary) return kBytes;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the model in {} has {} tokens, and no tokenizer.json lies there: name "
                          "the tokenizer of the text that it has learnt from (--tokenizer; it lies "
                          "in the data's folder)",
                          run.string(), vocabulary));
}

TextCodec::TextCodec(const std::string& tokenizer, std::int64_t vocabulary)
    : file_(tokenizer_file(tokenizer)), vocabulary_(vocabulary) {}

void TextCodec::require_known(std::int64_t vocabulary) const {
  if (vocabulary <= vocabulary_) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the tokenizer {} has {} tokens, and the model knows {}: name the "
                          "tokenizer of the text that it has learnt from",
                          bytes() ? kBytes : file_.string(), vocabulary, vocabulary_));
}

std::vector<std::int64_t> TextCodec::encode(const std::string& text) const {
  if (!bytes()) {
    const auto answer = ask({{"tokenizer", file_.string()}, {"encode", text}});
    require_known(answer["vocabulary"].get<std::int64_t>());
    return answer["tokens"].get<std::vector<std::int64_t>>();
  }
  require_known(kByteVocabulary);
  std::vector<std::int64_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string TextCodec::decode(const std::vector<std::int64_t>& tokens) const {
  if (!bytes()) {
    return ask({{"tokenizer", file_.string()}, {"decode", tokens}})["text"].get<std::string>();
  }
  std::string text;
  for (const auto token : tokens) {
    text += token < kByteVocabulary ? std::string(1, static_cast<char>(token)) : kUnknown;
  }
  return text;
}

ShownText::ShownText(const std::string& prompt, const TextCodec& codec, bool as_json)
    : codec_(codec),
      as_json_(as_json),
      grows_(codec.bytes() && !as_json),
      tokens_(codec.encode(prompt)),
      prompt_(tokens_) {
  if (grows_) write_to(stdout, prompt);
}

void ShownText::add(const std::vector<std::int64_t>& tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (grows_) write_to(stdout, codec_.decode(tokens));
}

void ShownText::finish() const {
  if (as_json_) {
    const std::vector<std::int64_t> added(tokens_.begin() + std::ssize(prompt_), tokens_.end());
    return print_json(
        {{"text", codec_.decode(tokens_)}, {"prompt_tokens", prompt_}, {"tokens", added}});
  }
  if (!grows_) write_to(stdout, codec_.decode(tokens_));
  write_to(stdout, "\n");
}

}  // namespace bimetal::cli
