#include "bimetal/cli/predict/generate.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/predict/text_codec.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/cli/train/shared_job.h"
#include "bimetal/device/device.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/predict/generate.h"
#include "bimetal/serving/client.h"

namespace bimetal::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenerateExamples = R"(Examples:
  bimetal generate runs/gpt_text --prompt 'The import statement' --tokens 300
  bimetal generate runs/gpt/step-00001000 --prompt 'Once' --temperature 0.8 --top-k 40 --seed 7
  bimetal generate models/gpt2 --prompt 'Once upon a time' --temperature 0

  bimetal generate 127.0.0.1:29600 --prompt 'Once' --tokens 50

RUN is a checkpoint, a folder of them (its newest is taken), a Hugging Face folder, or the address of
`bimetal serve`.)";

struct GenerateArguments {
  std::string run, prompt, tokenizer;
  std::string worker = "auto", token_file;
  double timeout_s = 600;
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

/// Prints a text as it grows, where its tokens are bytes: others mean what they mean among their
/// neighbours, and are shown at the end.
class Shown {
 public:
  Shown(const GenerateArguments& arguments, const TextCodec& codec)
      : codec_(codec), tokens_(codec.encode(arguments.prompt)), prompt_(tokens_) {
    if (codec_.bytes()) write_to(stdout, arguments.prompt);
  }

  const std::vector<std::int64_t>& prompt() const { return prompt_; }

  void add(const std::vector<std::int64_t>& tokens) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    if (codec_.bytes()) write_to(stdout, codec_.decode(tokens));
  }

  void finish() const {
    if (!codec_.bytes()) write_to(stdout, codec_.decode(tokens_));
    write_to(stdout, "\n");
  }

 private:
  const TextCodec& codec_;
  std::vector<std::int64_t> tokens_;
  const std::vector<std::int64_t> prompt_;
};

/// Of `bimetal serve`; empty where `run` is a folder.
std::optional<net::Endpoint> address_of(const std::string& run) {
  if (fs::exists(run)) return std::nullopt;
  try {
    return net::parse_endpoint(run);
  } catch (const Error&) {
    return std::nullopt;  // a folder that is not there
  }
}

int ask_server(const GenerateArguments& arguments, const net::Endpoint& server) {
  const auto deadline = Deadline::after(milliseconds_of(arguments.timeout_s));
  serving::Client client(
      {server, read_token(arguments.token_file), net::encryption_from_environment()});
  const auto facts = client.facts(deadline);
  if (arguments.tokenizer.empty() && facts.classes != 256) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("the model '{}' knows {} tokens, which are no bytes: name its tokenizer "
                    "by --tokenizer",
                    facts.model, facts.classes));
  }
  const TextCodec codec(arguments.tokenizer.empty() ? "bytes" : arguments.tokenizer, facts.classes);
  Shown text(arguments, codec);
  const auto& sampling = arguments.sampling;
  client.write(
      {.tokens = sampling.tokens,
       .temperature = sampling.temperature,
       .top_k = sampling.top_k,
       .seed = sampling.seed,
       .prompt = text.prompt()},
      [&](const std::vector<std::int64_t>& tokens) { text.add(tokens); }, deadline);
  text.finish();
  return kSuccess;
}

int generate_command(const GenerateArguments& arguments) {
  if (const auto server = address_of(arguments.run)) return ask_server(arguments, *server);
  const auto device = choose_device(arguments.worker);
  const auto [model, config] = load_language_model(arguments.run);
  const TextCodec codec(arguments.tokenizer.empty() ? tokenizer_of(arguments.run, config.vocabulary)
                                                    : arguments.tokenizer,
                        config.vocabulary);
  model.to(device);
  Shown text(arguments, codec);
  predict::generate(model, device, config.context, text.prompt(), arguments.sampling,
                    [&](std::int64_t token) { text.add({token}); });
  text.finish();
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
  command
      .add_option("--token-file", arguments.token_file,
                  "The secret of a server, see `bimetal token`; needed beyond loopback")
      ->type_name("FILE");
  add_encrypt(command, "OPTIONS");
  command.add_option("--timeout", arguments.timeout_s, "Of a server: seconds for all of it")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
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
