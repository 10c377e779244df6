#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/predict/text_codec.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExportExamples = R"(Examples:
  bimetal export runs/fashion_mnist --out weights
  bimetal export runs/gpt/step-00001000 --out models/mine --format huggingface --tokenizer data/texts
  bimetal export runs/gpt --out models/mine --format huggingface --push me/mine
  bimetal export runs/gpt --out dcp --format dcp

safetensors writes DIR/model.safetensors, of any model. huggingface writes a new folder of a language model, which
transformers loads: AutoModelForCausalLM.from_pretrained('DIR'). dcp (torch.distributed.checkpoint) and universal
(DeepSpeed) also have what the optimizer has learnt; `bimetal checkpoint import` is the way back. --push takes the
login of `hf auth login`.)";

struct ExportArguments {
  std::string run, out, tokenizer, push;
  std::string format = "safetensors";
  bool hidden = false, json = false;
};

/// The files that were written, for people and as JSON.
struct Exported {
  std::string text;
  nlohmann::ordered_json json;
};

constexpr const char* kCheckpointsModule = "bimetal.checkpoints";

Exported export_safetensors(const ExportArguments& arguments) {
  std::error_code trouble;  // writing tells, too
  fs::create_directories(arguments.out, trouble);
  const auto file = fs::path(arguments.out) / "model.safetensors";
  const auto saved = checkpoint::write_saved_weights(arguments.run, file);
  const auto from = saved.path.string();
  return {fmt::format("{}: {} tensors of {}", file.string(), saved.tensors, from),
          {{"path", file.string()}, {"checkpoint", from}, {"tensors", saved.tensors}}};
}

Exported export_huggingface(const ExportArguments& arguments) {
  const auto saved = checkpoint::load_saved_model(arguments.run);
  if (!saved.description.language) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} holds the model '{}', and only language models have a form that "
                            "transformers knows: take --format safetensors",
                            saved.path.string(), saved.description.name));
  }
  fs::path tokenizer;
  if (!arguments.tokenizer.empty()) tokenizer = tokenizer_file(arguments.tokenizer);
  checkpoint::save_huggingface(saved.model, *saved.description.language, arguments.out, tokenizer);
  const auto from = saved.path.string();
  return {fmt::format("{}: {} of {}", arguments.out, saved.description.name, from),
          {{"path", arguments.out}, {"checkpoint", from}, {"model", saved.description.name}}};
}

bool is_of_python(const std::string& format) {
  return format == "dcp" || format == "universal";
}

int in_python(const ExportArguments& arguments, std::vector<std::string> words) {
  if (arguments.json) words.emplace_back("--json");
  return become_python(kCheckpointsModule, words);
}

int push(const ExportArguments& arguments) {
  std::vector<std::string> words = {"push", arguments.out, arguments.push};
  if (arguments.hidden) words.emplace_back("--private");
  return in_python(arguments, words);
}

int export_command(const ExportArguments& arguments) {
  if (is_of_python(arguments.format)) {
    if (!arguments.push.empty()) {
      throw Error(ErrorCode::InvalidArgument,
                  "a hub has models, not trainings: --push goes with --format safetensors or "
                  "huggingface");
    }
    return in_python(
        arguments, {"export", arguments.run, "--out", arguments.out, "--format", arguments.format});
  }
  const auto done = arguments.format == "huggingface" ? export_huggingface(arguments)
                                                      : export_safetensors(arguments);
  const bool pushed = !arguments.push.empty();
  if (!arguments.json) {
    Terminal().print(done.text);
  } else if (!pushed) {
    print_json(done.json);
  }
  if (!pushed) return kSuccess;
  std::fflush(stdout);  // the next output is another program's
  return push(arguments);
}

}  // namespace

void add_export(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<ExportArguments>();
  auto* command = app.add_subcommand("export", "Write a checkpoint's weights for other programs");
  command->add_option("run", arguments->run, "A checkpoint, or a folder of them: its newest")
      ->required()
      ->type_name("RUN");
  command->add_option("--out", arguments->out, "The folder to write")->required()->type_name("DIR");
  command->add_option("--format", arguments->format, "Of what is written")
      ->check(CLI::IsMember({"safetensors", "huggingface", "dcp", "universal"}))
      ->capture_default_str();
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "huggingface: a tokenizer.json, or a folder with one, to put beside the weights")
      ->type_name("FILE");
  auto* push = command
                   ->add_option("--push", arguments->push,
                                "Then bring it to this repository of a Hugging Face hub")
                   ->type_name("USER/NAME");
  command->add_flag("--private", arguments->hidden, "Of a repository that is new: not for all")
      ->needs(push);
  command->add_flag("--json", arguments->json, "Print JSON: where it is now, and what of");
  command->footer(kExportExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return export_command(*arguments); }; });
}

}  // namespace bimetal::cli
