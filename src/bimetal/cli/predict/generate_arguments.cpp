#include "bimetal/cli/predict/generate_arguments.h"

#include <fmt/format.h>

namespace bimetal::cli {

void add_text_options(CLI::App& command, GenerateArguments& arguments) {
  command.add_option("run", arguments.run, "What has been trained")->required()->type_name("RUN");
  command.add_option("--prompt", arguments.prompt, "The text to go on from")
      ->required()
      ->type_name("TEXT");
  command.add_option("--tokens", arguments.sampling.tokens, "How many tokens to draw")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      .add_option("--temperature", arguments.sampling.temperature,
                  "Below 1 the likely tokens become likelier; 0: always the likeliest")
      ->type_name("T")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--top-k", arguments.sampling.top_k,
                  "Draw among so many of the likeliest tokens alone (default: all)")
      ->type_name("K")
      ->check(CLI::PositiveNumber);
  command.add_option("--seed", arguments.sampling.seed, "Of the draws")
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--tokenizer", arguments.tokenizer,
                  "tokenizer.json, a folder with one, or bytes (default: the one in RUN or beside "
                  "it, else bytes if the model knows 256 tokens)")
      ->type_name("FILE");
}

std::vector<std::string> text_options(const GenerateArguments& arguments) {
  const auto& sampling = arguments.sampling;
  std::vector<std::string> words = {fmt::format("--prompt={}", arguments.prompt),
                                    fmt::format("--tokens={}", sampling.tokens),
                                    fmt::format("--temperature={}", sampling.temperature),
                                    fmt::format("--seed={}", sampling.seed)};
  if (sampling.top_k > 0) words.push_back(fmt::format("--top-k={}", sampling.top_k));
  if (!arguments.tokenizer.empty()) {
    words.push_back(fmt::format("--tokenizer={}", arguments.tokenizer));
  }
  words.push_back(arguments.run);
  return words;
}

}  // namespace bimetal::cli
