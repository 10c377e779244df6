#include "bimetal/cli/predict/generate.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/predict/text_codec.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/device/device.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/predict/generate.h"

namespace bimetal::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenerateExamples = R"(Examples:
  bimetal generate runs/gpt_text --prompt 'The import statement' --tokens 300
  bimetal generate runs/gpt/step-00001000 --prompt 'Once' --temperature 0.8 --top-k 40 --seed 7
  bimetal generate models/gpt2 --prompt 'Once upon a time' --temperature 0

RUN is a checkpoint, a folder of them (its newest is taken), or a Hugging Face folder.)";

struct GenerateArguments {
  std::string run, prompt, tokenizer;
  std::string worker = "auto";
  predict::Sampling sampling;
};

struct LanguageModel {
  task::Model model;
  models::LanguageModelConfig config;
};

LanguageModel load_language_model(const fs::path& run) {
  if (fs::exists(run / "config.json")) {
    const auto config = checkpoint::read_huggingface_config(run);
    auto model = checkpoint::make_described_model({.name = config.family, .language = config});
    checkpoint::load_huggingface(model, run);
    return {std::move(model), config};
  }
  auto saved = checkpoint::load_saved_model(run);
  if (!saved.description.language) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} holds the model '{}', which is no language model: ask it with "
                            "bimetal serve and predict",
                            saved.path.string(), saved.description.name));
  }
  return {std::move(saved.model), *saved.description.language};
}

torch::Device choose_device(const std::string& worker) {
  const auto spec = job::parse_worker_spec(worker);
  device::apply_worker_limits(spec, /*local_world_size=*/1);
  return device::select_device(spec, /*local_rank=*/0);
}

int generate_command(const GenerateArguments& arguments) {
  const auto device = choose_device(arguments.worker);
  const auto [model, config] = load_language_model(arguments.run);
  const TextCodec codec(arguments.tokenizer.empty() ? tokenizer_of(arguments.run, config.vocabulary)
                                                    : arguments.tokenizer,
                        config.vocabulary);
  auto text = codec.encode(arguments.prompt);
  model.to(device);
  std::function<void(std::int64_t)> show;
  if (codec.bytes()) {
    write_to(stdout, arguments.prompt);
    show = [&](std::int64_t token) { write_to(stdout, codec.decode({token})); };
  }
  const auto tokens =
      predict::generate(model, device, config.context, text, arguments.sampling, show);
  if (!codec.bytes()) {  // other tokens mean what they mean among their neighbours
    text.insert(text.end(), tokens.begin(), tokens.end());
    write_to(stdout, codec.decode(text));
  }
  write_to(stdout, "\n");
  return kSuccess;
}

void add_generate_options(CLI::App& command, GenerateArguments& arguments) {
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
  command.add_option("--worker", arguments.worker, "What to compute on (default: auto)")
      ->type_name("SPEC");
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<GenerateArguments>();
  auto* command = app.add_subcommand("generate", "Let a trained language model go on with a text");
  add_generate_options(*command, *arguments);
  command->footer(kGenerateExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return generate_command(*arguments); }; });
}

}  // namespace bimetal::cli
