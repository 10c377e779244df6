#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "bimetal/cli/command.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/predict/text_codec.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExportExamples = R"(Examples:
  bimetal export runs/fashion_mnist --out weights
  bimetal export runs/gpt/step-00001000 --out models/mine --format huggingface --tokenizer data/texts

safetensors writes DIR/model.safetensors, of any model. huggingface writes a new folder of a language model, which
transformers loads: AutoModelForCausalLM.from_pretrained('DIR').)";

struct ExportArguments {
  std::string run, out, tokenizer;
  std::string format = "safetensors";
};

std::string export_safetensors(const ExportArguments& arguments) {
  std::error_code trouble;  // writing tells, too
  fs::create_directories(arguments.out, trouble);
  const auto file = fs::path(arguments.out) / "model.safetensors";
  const auto saved = checkpoint::write_saved_weights(arguments.run, file);
  return fmt::format("{}: {} tensors of {}", file.string(), saved.tensors, saved.path.string());
}

std::string export_huggingface(const ExportArguments& arguments) {
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
  return fmt::format("{}: {} of {}", arguments.out, saved.description.name, saved.path.string());
}

int export_command(const ExportArguments& arguments) {
  const auto done = arguments.format == "huggingface" ? export_huggingface(arguments)
                                                      : export_safetensors(arguments);
  Terminal().print(done);
  return kSuccess;
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
      ->check(CLI::IsMember({"safetensors", "huggingface"}))
      ->capture_default_str();
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "huggingface: a tokenizer.json, or a folder with one, to put beside the weights")
      ->type_name("FILE");
  command->footer(kExportExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return export_command(*arguments); }; });
}

}  // namespace bimetal::cli
