#include "bimetal/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/checkpoint/open_checkpoint.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

using checkpoint::Inspected;

constexpr const char* kCheckpointExamples = R"(Examples:
  bimetal checkpoint inspect runs/gpt
  bimetal checkpoint consolidate runs/gpt/step-00001000 --out whole
  bimetal checkpoint import dcp --out runs/taken, then bimetal train gpt.toml --resume runs/taken

import reads folders of torch.distributed.checkpoint, which are pickles: only of those whom you trust. Of DeepSpeed's
universal checkpoints it takes tensors alone.)";

struct CheckpointArguments {
  std::string path, out, optimizer;
  std::uint64_t seed = 1;
  bool json = false;
};

std::string described(const Inspected& found) {
  const auto& state = found.state;
  // A loop in Python counts its steps itself, or not at all.
  std::string text = found.path.string() + ": ";
  text += !found.of_loop || state.step > 0
              ? fmt::format("step {}, epoch {}, ", state.step, state.position.epoch + 1)
              : std::string("of a loop in Python, ");
  text += found.optimizer;
  if (state.model) text += fmt::format(", {}", state.model->name);
  if (found.tensors > 0) {
    text += fmt::format(", {} numbers in {} tensors", found.elements, found.tensors);
  }
  text += found.ranks > 0 ? "; in slices of " + counted(found.ranks, "rank")
                          : std::string("; whole tensors");
  return text;
}

void print_files(const Inspected& found, Terminal& terminal) {
  std::vector<TableRow> rows = {{"  file", "tensors", "bytes", "checksum"}};
  for (const auto& file : found.files) {
    rows.push_back({"  " + file.name, std::to_string(file.tensors), std::to_string(file.bytes),
                    file.flaw.empty() ? "right" : "WRONG"});
  }
  for (const auto& line : aligned(rows, 1)) terminal.print(line);
}

/// The first thing that is wrong; empty if all is well.
std::string flaw_of(const Inspected& found) {
  if (!found.flaw.empty()) return found.flaw;
  const auto bad = std::ranges::find_if(found.files, [](const auto& f) { return !f.flaw.empty(); });
  return bad == found.files.end() ? std::string() : bad->flaw;
}

nlohmann::ordered_json json_of_inspected(const std::vector<Inspected>& all) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& found : all) {
    auto files = nlohmann::ordered_json::array();
    for (const auto& file : found.files) {
      files.push_back({{"name", file.name},
                       {"bytes", file.bytes},
                       {"tensors", file.tensors},
                       {"flaw", file.flaw}});
    }
    list.push_back({{"path", found.path.string()},
                    {"flaw", found.flaw},
                    {"step", found.state.step},
                    {"epoch", found.state.position.epoch},
                    {"optimizer", found.optimizer},
                    {"ranks", found.ranks},
                    {"tensors", found.tensors},
                    {"elements", found.elements},
                    {"files", files}});
  }
  return list;
}

int inspect_command(const CheckpointArguments& arguments) {
  const auto all = checkpoint::inspect_checkpoints(arguments.path);
  Terminal terminal;
  if (arguments.json) print_json(json_of_inspected(all));
  std::string flaw;
  for (const auto& found : all) {
    if (flaw.empty()) flaw = flaw_of(found);
    if (arguments.json) continue;
    if (found.flaw.empty()) {
      terminal.print(terminal.coloured(Colour::bold, described(found)));
      print_files(found, terminal);
    } else {
      terminal.print(fmt::format("{}: {}", found.path.string(), found.flaw));
    }
  }
  if (flaw.empty()) return kSuccess;
  throw Error(ErrorCode::CorruptData,
              fmt::format("{}. Go on from another, or fetch it anew", flaw));
}

int consolidate_command(const CheckpointArguments& arguments) {
  const auto from = checkpoint::consolidate_checkpoint(arguments.path, arguments.out);
  if (arguments.json) {
    print_json({{"path", arguments.out}, {"checkpoint", from.string()}});
  } else {
    Terminal().print(fmt::format("{}: whole tensors of {}", arguments.out, from.string()));
  }
  return kSuccess;
}

int import_command(const CheckpointArguments& arguments) {
  std::vector<std::string> words = {"import",      arguments.path, "--out",
                                    arguments.out, "--seed",       std::to_string(arguments.seed)};
  if (!arguments.optimizer.empty()) {
    words.insert(words.end(), {"--optimizer", arguments.optimizer});
  }
  if (arguments.json) words.emplace_back("--json");
  return become_python("bimetal.checkpoints", words);
}

}  // namespace

void add_checkpoint(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<CheckpointArguments>();
  auto* command = app.add_subcommand(
      "checkpoint", "Look at checkpoints, put slices together, take other programs'");
  command->require_subcommand(1);
  command->footer(kCheckpointExamples);
  auto* inspect =
      command->add_subcommand("inspect", "Say what checkpoints hold and whether they are intact");
  auto* consolidate = command->add_subcommand(
      "consolidate", "Write a checkpoint anew with whole tensors, never more than one in memory");
  for (auto* sub : {inspect, consolidate}) {
    sub->add_option("path", arguments->path, "A checkpoint, or a folder of them")
        ->required()
        ->type_name("PATH");
  }
  consolidate->add_option("--out", arguments->out, "The checkpoint to write: a new folder")
      ->required()
      ->type_name("DIR");
  auto* take = command->add_subcommand(
      "import", "Make a checkpoint of a folder of torch.distributed.checkpoint or DeepSpeed's");
  take->add_option("path", arguments->path, "A DCP folder, or a universal checkpoint")
      ->required()
      ->type_name("PATH");
  take->add_option("--out", arguments->out, "The checkpoint to write: a new folder")
      ->required()
      ->type_name("DIR");
  take->add_option("--optimizer", arguments->optimizer,
                   "Whose states these are, where it cannot be told: Adam's are taken for AdamW's")
      ->check(CLI::IsMember({"sgd", "adam", "adamw", "lars", "lamb"}));
  take->add_option("--seed", arguments->seed, "train.seed of the job that is to go on")
      ->capture_default_str();
  for (auto* sub : {inspect, consolidate, take}) {
    sub->add_flag("--json", arguments->json, "Print JSON instead of text");
  }
  take->callback(
      [arguments, &action] { action = [arguments] { return import_command(*arguments); }; });
  inspect->callback(
      [arguments, &action] { action = [arguments] { return inspect_command(*arguments); }; });
  consolidate->callback(
      [arguments, &action] { action = [arguments] { return consolidate_command(*arguments); }; });
}

}  // namespace bimetal::cli
