#include "bimetal/net/pairing/machines.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bimetal/cli/command.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

constexpr const char* kMachinesExamples = R"(Examples:
  bimetal machines
  bimetal machines --json
  bimetal machines forget pc

A machine that is forgotten needs a code again. That of either side is enough.)";

int list_machines(bool as_json) {
  const auto machines = net::Machines::of_user();
  const auto names = machines.names();
  if (as_json) {
    print_json({{"name", machines.own_name()}, {"machines", names}});
    return kSuccess;
  }
  Terminal terminal;
  for (const auto& name : names) terminal.print(name);
  if (names.empty()) {
    print_to_errors(
        fmt::format("{} remembers no machines: `bimetal train --share` and `bimetal "
                    "join` make two remember each other",
                    machines.own_name()));
  }
  return kSuccess;
}

int forget_machine(const std::string& name) {
  const auto machines = net::Machines::of_user();
  if (!machines.forget(name)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("no machine called {} is remembered: `bimetal machines` lists those "
                            "that are",
                            name));
  }
  Terminal().print(fmt::format("forgot {}: the two need a code again", name));
  return kSuccess;
}

}  // namespace

void add_machines(CLI::App& app, Action& action) {
  auto* command =
      app.add_subcommand("machines", "The machines that are let into shared jobs without a code");
  command->footer(kMachinesExamples);
  auto name = std::make_shared<std::string>();
  auto* forget = command->add_subcommand("forget", "Let a machine in no more without a code");
  forget->add_option("name", *name, "What `bimetal machines` calls it")
      ->required()
      ->type_name("NAME");
  forget->callback([name, &action] { action = [name] { return forget_machine(*name); }; });
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print JSON in place of names");
  command->callback([command, forget, as_json, &action] {
    if (!command->got_subcommand(forget)) action = [as_json] { return list_machines(*as_json); };
  });
}

}  // namespace bimetal::cli
