#include "bimetal/cli/start/way_in.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/start/host_meeting.h"
#include "bimetal/cli/start/share.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::cli {
namespace {

Deadline deadline_after(double seconds) {
  return Deadline::after(milliseconds_of(seconds));
}

/// A job that is not there may be one that is there no more: a process that waits for it is told so
/// early.
std::unique_ptr<rendezvous::Store> find_job(const net::Endpoint& host, const net::Token& token,
                                            Deadline deadline, const std::string& name,
                                            Terminal& terminal) {
  constexpr std::chrono::seconds kUntilTold{2};
  if (deadline.remaining() > kUntilTold) {
    try {
      return rendezvous::connect_store(host, token, Deadline::after(kUntilTold));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout) throw;
      terminal.print(
          fmt::format("nobody answers at {} yet: the job has not begun, or has ended", name));
    }
  }
  try {
    return rendezvous::connect_store(host, token, deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Timeout) throw;
    throw Error(error.code(), fmt::format("{}; or the job of {} has ended", error.what(), name));
  }
}

/// Without a token the job's machine is asked to let this one in. Without a machine, `options`
/// gets the one that the user chooses.
WayIn find_way_in(JoinOptions& options, Deadline deadline, Terminal& terminal) {
  std::vector<net::Endpoint> places;
  if (options.host.empty()) {
    const auto job = choose_job(terminal);
    options.host = job.machine;
    for (const auto& address : job.addresses) places.push_back({address, job.port});
  } else {
    places.push_back(parse_host(options.host));
    terminal.print(fmt::format("connecting to {}", options.host));
    const auto token = read_token(options.token_file);
    if (!token.empty()) return {places.front(), token};
  }
  const auto admission = ask_to_be_let_in(places, options.host, deadline);
  if (!admission) return {places.front(), {}};
  encrypt_unless_told(admission->grant.encrypted);
  terminal.print(fmt::format("{} lets this machine in{}", admission->host,
                             admission->remembered ? "" : ": the two remember each other"));
  return {admission->store, admission->grant.token};
}

launch::JobOffer offer_of(launch::JobBoard& board, const std::string& host, Deadline deadline) {
  auto offer = board.read_offer(deadline);
  if (offer.version == release()) return offer;
  throw Error(
      ErrorCode::ProtocolMismatch,
      fmt::format("{} runs Bimetal {} and this machine {}; install the same version on both", host,
                  offer.version, release()));
}

}  // namespace

void add_join_options(CLI::App& command, JoinOptions& options) {
  command
      .add_option("host", options.host,
                  "The machine on which the job was started with --share or --listen; the port may "
                  "be left out with --share")
      ->type_name("HOST[:PORT]");
  command
      .add_option("command", options.command,
                  "Of a job by `bimetal launch`: what runs here, after --, if it is not the job's "
                  "script in this folder")
      ->type_name("[-- COMMAND ARGS…]");
  command.add_option("-n,--np", options.ranks, "Ranks of this machine, of such a job (default: 1)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--token-file", options.token_file,
                  "The job's shared secret, if it was not started with --share")
      ->type_name("FILE");
  command.add_option("--join-timeout", options.join_timeout_s, "How long to look for the job")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_encrypt(command, "OPTIONS");
}

// The way in names the machine, and so comes first.
JobToJoin::JobToJoin(JoinOptions& options, Terminal& terminal)
    : JobToJoin(options, terminal, deadline_after(options.join_timeout_s)) {}

JobToJoin::JobToJoin(JoinOptions& options, Terminal& terminal, Deadline deadline)
    : way(find_way_in(options, deadline, terminal)),
      name(options.host),
      store(find_job(way.store, way.token, deadline, name, terminal)),
      board(store),
      offer(offer_of(board, name, deadline)) {}

bool wait_for_start(JobToJoin& job, launch::SignalWatch& signals, double timeout_s) {
  auto& board = job.board;
  const auto deadline = deadline_after(timeout_s);
  while (!board.started()) {
    if (signals.stop_requests() > 0) {
      board.withdraw(own_host_name());
      return false;
    }
    if (board.withdrawn()) {
      throw Error(ErrorCode::Aborted, fmt::format("{} gave up before the job began", job.name));
    }
    if (deadline.expired()) {
      board.withdraw(own_host_name());
      throw Error(ErrorCode::Timeout,
                  fmt::format("the job of {} did not begin within {:g} s: workers are missing",
                              job.name, timeout_s));
    }
    signals.pause(std::chrono::milliseconds(100));
  }
  return true;
}

}  // namespace bimetal::cli
