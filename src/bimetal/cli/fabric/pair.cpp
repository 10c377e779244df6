#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/start/share.h"
#include "bimetal/cli/terminal.h"

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

/// Prints one line: granted, the secret, address and port of what it is for, whether that is
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

}  // namespace bimetal::cli
