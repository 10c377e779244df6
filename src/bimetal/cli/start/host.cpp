#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "bimetal/base/deadline.h"
#include "bimetal/base/quantity.h"
#include "bimetal/base/release.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/start/run_job.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/train/server/server_job.h"

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

/// The host's part in the rendezvous.
class Host {
 public:
  Host(const LocalRanks& ranks, const HostOptions& options, launch::SignalWatch& signals)
      : ranks_(ranks),
        options_(options),
        signals_(signals),
        token_(read_token(options.token_file)),
        server_(serve_meeting(net::parse_endpoint(options.listen), token_)),
        // The ranks here go by the address that others use, too: it is what they publish.
        address_{net::reachable_address(server_->endpoint().host), server_->endpoint().port},
        store_(
            rendezvous::connect_store(address_, token_, Deadline::after(std::chrono::seconds(10)))),
        board_(store_) {}

  ~Host() { wait_until_others_left(); }

  int run() {
    const auto servers_here = static_cast<int>(ranks_.servers.size());
    board_.offer({std::string(release()), to_text(for_other_machines(ranks_.request)),
                  options_.world_size, servers_here},
                 own_workers());
    const bool with_servers = has_servers(ranks_.request);
    if (with_servers) {
      const int elsewhere = train::server_processes(ranks_.request.job.servers) - servers_here;
      if (elsewhere > 0) {
        say(fmt::format("waiting for {} from elsewhere; {}", counted(elsewhere, "parameter server"),
                        how_to_join(" --server")));
      }
      say(fmt::format("workers may come and go: {}", how_to_join()));
      say(fmt::format("ask the newest weights, once it trains: bimetal predict {} IMAGES",
                      net::to_string(address_)));
    } else if (!wait_for_workers()) {
      board_.withdraw(own_host_name());
      return conclude({.interrupted = true});
    }
    board_.start();
    if (ranks_.request.elastic) {
      say(fmt::format("workers may join later, too: {}", how_to_join()));
    }
    auto plan = plan_of(ranks_);
    plan.world_size = with_servers ? static_cast<int>(plan.ranks.size()) : options_.world_size;
    plan.only_these = !with_servers;
    plan.store = address_;
    plan.token = token_;
    tell_of_failed_ranks(plan, ranks_, store_);
    return run_shared_job(plan, ranks_.request.work, board_, signals_);
  }

 private:
  int own_workers() const { return static_cast<int>(ranks_.workers.size()); }

  /// A plan's standard output is the plan.
  void say(const std::string& text) {
    if (ranks_.request.work == Work::train) {
      terminal_.print(text);
    } else {
      print_to_errors(text);
    }
  }

  std::string how_to_join(std::string_view as = "") const {
    return fmt::format("on the other machine run: bimetal join {}{}{}", net::to_string(address_),
                       as, token_.empty() ? "" : " --token-file FILE (the same token)");
  }

  void require_everyone(int claimed, Deadline deadline) {
    if (const auto who = board_.withdrawn()) {
      throw Error(ErrorCode::Aborted, fmt::format("{} left before the job began", *who));
    }
    if (!deadline.expired()) return;
    board_.withdraw(own_host_name());
    throw Error(ErrorCode::Timeout,
                fmt::format("{} of {} there after {:g} s (cluster.join_timeout_s); {}", claimed,
                            counted(options_.world_size, "worker"),
                            ranks_.request.job.cluster.join_timeout_s, how_to_join()));
  }

  /// False if the user gave up.
  bool wait_for_workers() {
    const double patience_s = ranks_.request.job.cluster.join_timeout_s;
    const auto deadline = Deadline::after(milliseconds_of(patience_s));
    for (int last_missing = 0;;) {
      const int claimed = board_.claimed();
      const int missing = options_.world_size - claimed;
      if (missing <= 0) return true;
      if (missing != last_missing) {
        say(fmt::format("waiting for {}; {}", counted(missing, "more worker"), how_to_join()));
        last_missing = missing;
      }
      require_everyone(claimed, deadline);
      signals_.pause(kLookEvery);
      if (signals_.stop_requests() > 0) return false;
    }
  }

  /// Others may still want to read why the job failed, or are to meet where a rank is lost.
  void wait_until_others_left() noexcept {
    try {
      std::chrono::milliseconds patience = std::chrono::seconds(5);
      if (ranks_.request.job.zero.copies > 1) {
        patience = std::max(patience, milliseconds_of(ranks_.request.job.parallel.timeout_s));
      }
      const auto deadline = Deadline::after(patience);
      board_.leave();
      // Without a meeting of those who are left there is nothing to stay for but a reason.
      if (ranks_.request.job.zero.copies <= 1 && board_.in_trouble() && !board_.failure()) return;
      while (!board_.everyone_left() && !deadline.expired())
        signals_.pause(std::chrono::milliseconds(20));
    } catch (const std::exception&) {
      // Courtesy only: nothing is lost when it fails.
    }
  }

  const LocalRanks& ranks_;
  const HostOptions& options_;
  launch::SignalWatch& signals_;
  net::Token token_;
  std::unique_ptr<rendezvous::StoreServer> server_;
  net::Endpoint address_;
  launch::JobStore store_;
  launch::JobBoard board_;
  Terminal terminal_;
};

}  // namespace

CLI::Option* add_host_options(CLI::App& command, HostOptions& options) {
  constexpr const char* kGroup = "Several machines";
  auto* listen = command
                     .add_option("--listen", options.listen,
                                 "Wait here for workers of other machines (`bimetal join`)")
                     ->type_name("ADDR:PORT")
                     ->group(kGroup);
  command
      .add_option("--world-size", options.world_size, "Workers over all machines, these included")
      ->type_name("N")
      ->needs(listen)
      ->group(kGroup);
  command
      .add_option("--token-file", options.token_file,
                  "The job's shared secret, see `bimetal token`; needed beyond loopback")
      ->type_name("FILE")
      ->group(kGroup);
  add_encrypt(command, kGroup);
  return listen;
}

void refuse_in_rank(const HostOptions& options) {
  if (!options.listen.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                "--listen starts a job, but RANK is set (or mpirun or srun is at work): this "
                "process is one rank of a job that another launcher has started; unset RANK, or "
                "leave --listen out");
  }
  if (!options.token_file.empty()) {
    throw Error(
        ErrorCode::InvalidArgument,
        "--token-file is for the process that starts a job, and this one is a rank of a job "
        "that another launcher has started: set BIMETAL_TOKEN_FILE for all of its ranks");
  }
}

int run_host_job(const LocalRanks& ranks, const HostOptions& options,
                 launch::SignalWatch& signals) {
  if (has_servers(ranks.request)) return Host(ranks, options, signals).run();
  if (options.world_size == 0) {
    throw Error(ErrorCode::InvalidArgument,
                "--listen needs --world-size: the workers over all machines");
  }
  if (options.world_size < static_cast<int>(ranks.workers.size())) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("--world-size {} counts the workers of all machines, and this one "
                            "alone has {}",
                            options.world_size, ranks.workers.size()));
  }
  return Host(ranks, options, signals).run();
}

}  // namespace bimetal::cli
