#include "bimetal/cli/start/host_meeting.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/cli/command.h"

namespace bimetal::cli {
namespace {

constexpr std::chrono::milliseconds kLookEvery{100};

/// Within WSL2 the PC's address may be Windows' alone.
std::unique_ptr<rendezvous::StoreServer> serve_meeting(const net::Endpoint& listen,
                                                       const net::Token& token) {
  try {
    return std::make_unique<rendezvous::StoreServer>(listen, token);
  } catch (const Error& error) {
    if (std::getenv("WSL_DISTRO_NAME") == nullptr) throw;
    throw Error(error.code(),
                fmt::format("{}; in WSL2 behind NAT, the default, this PC's address belongs to "
                            "Windows: let the other machine --listen and join from here, or use "
                            "networkingMode=mirrored (docs/windows.md)",
                            error.what()));
  }
}

/// A shared job needs one that nobody has to carry.
net::Token token_of(const HostOptions& options) {
  auto token = read_token(options.token_file);
  return token.empty() && options.share ? net::Token::generate() : token;
}

/// Machines that the code lets in are told the store's port.
net::Endpoint store_endpoint(const HostOptions& options) {
  if (!options.share) return net::parse_endpoint(options.listen);
  return {share_endpoint(options).host, 0};
}

std::string address_of(const HostOptions& options, const std::string& host) {
  const bool any = options.share && options.listen.empty();
  return any ? addresses_to_share().front() : net::reachable_address(host);
}

}  // namespace

void add_host_options(CLI::App& command, HostOptions& options) {
  constexpr const char* kGroup = "Several machines";
  command
      .add_flag("--share", options.share,
                "Let other machines in by a code that is shown here (`bimetal join`); encrypted, "
                "with a token that nobody has to carry")
      ->group(kGroup);
  command
      .add_option("--listen", options.listen,
                  "Wait here for workers of other machines (`bimetal join`); with --share anywhere "
                  "by default")
      ->type_name("ADDR:PORT")
      ->group(kGroup);
  command
      .add_option("--world-size", options.world_size,
                  "Workers over all machines, these included; with --share one more than here by "
                  "default")
      ->type_name("N")
      ->group(kGroup);
  command
      .add_option("--token-file", options.token_file,
                  "The job's shared secret, see `bimetal token`; needed beyond loopback")
      ->type_name("FILE")
      ->group(kGroup);
  add_encrypt(command, kGroup);
}

int world_size_of(const HostOptions& options, int here) {
  if (options.share) encrypt_unless_told();
  const int all = options.all_workers(here);
  if (all == 0) {
    throw Error(ErrorCode::InvalidArgument,
                "--listen needs --world-size: the workers over all machines");
  }
  if (all < here) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("--world-size {} counts the workers of all machines, and this one "
                            "alone has {}",
                            options.world_size, here));
  }
  return all;
}

HostMeeting::HostMeeting(const HostOptions& options, int world_size, launch::SignalWatch& signals,
                         Say say)
    : signals_(signals),
      say_(std::move(say)),
      world_size_(world_size),
      token_(token_of(options)),
      server_(serve_meeting(store_endpoint(options), token_)),
      // The ranks here use the same address as others, because they publish it.
      address_{address_of(options, server_->endpoint().host), server_->endpoint().port},
      store_(
          rendezvous::connect_store(address_, token_, Deadline::after(std::chrono::seconds(10)))),
      board_(store_) {
  if (options.share) share_.emplace(options, token_, address_.port);
}

void HostMeeting::offer(const launch::JobOffer& offer, int own_workers, const std::string& name) {
  board_.offer(offer, own_workers);
  if (!share_) return;
  say_(share_->invitation());
  share_->announce(name, own_workers);
}

std::string HostMeeting::how_to_join(std::string_view as) const {
  if (share_) return fmt::format("on the other machine run: {}{}", share_->how_to_join(), as);
  return fmt::format("on the other machine run: bimetal join {}{}{}", net::to_string(address_), as,
                     token_.empty() ? "" : " --token-file FILE (the same token)");
}

void HostMeeting::require_everyone(int claimed, Deadline deadline, double patience_s,
                                   std::string_view option) {
  if (const auto who = board_.withdrawn()) {
    throw Error(ErrorCode::Aborted, fmt::format("{} left before the job began", *who));
  }
  if (!deadline.expired()) return;
  board_.withdraw(own_host_name());
  throw Error(ErrorCode::Timeout,
              fmt::format("{} of {} there after {:g} s ({}); {}", claimed,
                          counted(world_size_, "worker"), patience_s, option, how_to_join()));
}

bool HostMeeting::wait_for_workers(double patience_s, std::string_view option) {
  const auto deadline = Deadline::after(milliseconds_of(patience_s));
  for (int last_missing = 0;;) {
    const int claimed = board_.claimed();
    const int missing = world_size_ - claimed;
    if (missing <= 0) return true;
    if (missing != last_missing) {
      say_(fmt::format("waiting for {}; {}", counted(missing, "more worker"), how_to_join()));
      last_missing = missing;
    }
    require_everyone(claimed, deadline, patience_s, option);
    signals_.pause(kLookEvery);
    if (signals_.stop_requests() == 0) continue;
    board_.withdraw(own_host_name());
    return false;
  }
}

void HostMeeting::wait_until_others_left(std::chrono::milliseconds patience,
                                         bool to_meet) noexcept {
  try {
    const auto deadline = Deadline::after(patience);
    board_.leave();
    // Without a meeting of those who are left there is nothing to stay for but a reason.
    if (!to_meet && board_.in_trouble() && !board_.failure()) return;
    while (!board_.everyone_left() && !deadline.expired())
      signals_.pause(std::chrono::milliseconds(20));
  } catch (const std::exception&) {
    // Courtesy only: nothing is lost when it fails.
  }
}

}  // namespace bimetal::cli
