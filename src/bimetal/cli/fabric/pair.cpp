#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/start/share.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/net/pairing/machines.h"

namespace bimetal::cli {
namespace {

// A secret that another program has, given to machines that know a code, and asked for there. It
// goes by standard input and output, which are pipes of that program.

struct PairArguments {
  std::string purpose, name, host, listen;
  std::uint16_t port = 0;    ///< where the host is found
  std::uint16_t serves = 0;  ///< the port that guests are told
  double timeout_s = 60;
};

/// Until the end of standard input, whose first line is the secret.
int pair_host(const PairArguments& arguments) {
  std::string secret;
  if (!std::getline(std::cin, secret)) {
    throw Error(ErrorCode::InvalidArgument, "pair host: no secret on standard input");
  }
  HostOptions options;
  options.share = true;
  options.listen = arguments.listen;
  Share share(options, net::Token::from_text(secret), arguments.serves, arguments.port);
  Terminal terminal;
  terminal.print(fmt::format("place {}", share.place()));
  terminal.print(fmt::format("code {}", share.first_code()));
  share.announce(arguments.name, 0, arguments.purpose);
  while (std::getline(std::cin, secret)) continue;
  return kSuccess;
}

/// Prints one line: granted, the secret, the address and port that it is for, whether that is
/// encrypted, and the host's name. Unsupported where nothing is shared.
int pair_guest(const PairArguments& arguments) {
  Terminal terminal;
  std::vector<net::Endpoint> places;
  auto name = arguments.host;
  if (name.empty()) {
    const auto job = choose_job(terminal, arguments.purpose);
    name = job.machine;
    for (const auto& address : job.addresses) places.push_back({address, job.port});
  } else {
    places.push_back(parse_host(name, arguments.port));
  }
  const auto deadline = Deadline::after(milliseconds_of(arguments.timeout_s));
  const auto admission = ask_to_be_let_in(places, name, deadline);
  if (!admission) {
    throw Error(ErrorCode::Unsupported, fmt::format("{} shares nothing by a code", name));
  }
  terminal.print(fmt::format("granted {} {} {} {} {}", admission->grant.token.text(),
                             admission->store.host, admission->store.port,
                             admission->grant.encrypted ? "on" : "off", admission->host));
  return kSuccess;
}

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

void add_pair(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<PairArguments>();
  auto* command = app.add_subcommand("pair", "What `bimetal ray --share` starts");
  command->group("");  // not for people
  command->require_subcommand(1);
  auto* host = command->add_subcommand("host", "Let machines in by a code");
  host->add_option("--name", arguments->name)->required();
  host->add_option("--serves", arguments->serves)->required();
  host->add_option("--listen", arguments->listen);
  auto* guest = command->add_subcommand("guest", "Ask to be let in");
  guest->add_option("host", arguments->host);
  guest->add_option("--timeout", arguments->timeout_s);
  for (auto* each : {host, guest}) {
    each->add_option("--purpose", arguments->purpose)->required();
    each->add_option("--port", arguments->port)->required();
  }
  host->callback([arguments, &action] { action = [arguments] { return pair_host(*arguments); }; });
  guest->callback(
      [arguments, &action] { action = [arguments] { return pair_guest(*arguments); }; });
}

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
