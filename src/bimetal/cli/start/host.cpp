#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "bimetal/base/deadline.h"
#include "bimetal/base/quantity.h"
#include "bimetal/base/release.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/start/run_job.h"
#include "bimetal/cli/start/share.h"
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

/// A shared job needs one that nobody has to carry.
net::Token token_of(const HostOptions& options) {
  auto token = read_token(options.token_file);
  return token.empty() && options.share ? net::Token::generate() : token;
}

/// Whom the code lets in is told the store's port.
net::Endpoint store_endpoint(const HostOptions& options) {
  if (!options.share) return net::parse_endpoint(options.listen);
  return {share_endpoint(options).host, 0};
}

std::string address_of(const HostOptions& options, const std::string& host) {
  const bool any = options.share && options.listen.empty();
  return any ? addresses_to_share().front() : net::reachable_address(host);
}

/// As people know the job: checkpoints are in runs/ and the job file's name unless it says
/// otherwise.
std::string name_of(const job::JobConfig& job) {
  const auto folder = std::filesystem::path(job.checkpoint.dir).filename().string();
  return folder.empty() ? job.model.name : folder;
}

/// The host's part in the rendezvous.
class Host {
 public:
  Host(const LocalRanks& ranks, const HostOptions& options, launch::SignalWatch& signals)
      : ranks_(ranks),
        signals_(signals),
        world_size_(options.all_workers(static_cast<int>(ranks.workers.size()))),
        token_(token_of(options)),
        server_(serve_meeting(store_endpoint(options), token_)),
        // The ranks here go by the address that others use, too: it is what they publish.
        address_{address_of(options, server_->endpoint().host), server_->endpoint().port},
        store_(
            rendezvous::connect_store(address_, token_, Deadline::after(std::chrono::seconds(10)))),
        board_(store_) {
    if (options.share) share_.emplace(options, token_, address_.port);
  }

  ~Host() { wait_until_others_left(); }

  int run() {
    const auto servers_here = static_cast<int>(ranks_.servers.size());
    board_.offer({std::string(release()), to_text(for_other_machines(ranks_.request)), world_size_,
                  servers_here},
                 own_workers());
    if (share_) {
      say(share_->invitation());
      share_->announce(name_of(ranks_.request.job), own_workers());
    }
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
    plan.world_size = with_servers ? static_cast<int>(plan.ranks.size()) : world_size_;
    plan.only_these = !with_servers;
    plan.store = address_;
    plan.token = token_;
    tell_of_failed_ranks(plan, ranks_, store_);
    return run_shared_job(plan, ranks_.request, board_, signals_);
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
    if (share_) return fmt::format("on the other machine run: {}{}", share_->how_to_join(), as);
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
                            counted(world_size_, "worker"),
                            ranks_.request.job.cluster.join_timeout_s, how_to_join()));
  }

  /// False if the user gave up.
  bool wait_for_workers() {
    const double patience_s = ranks_.request.job.cluster.join_timeout_s;
    const auto deadline = Deadline::after(milliseconds_of(patience_s));
    for (int last_missing = 0;;) {
      const int claimed = board_.claimed();
      const int missing = world_size_ - claimed;
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
  launch::SignalWatch& signals_;
  const int world_size_;
  net::Token token_;
  std::unique_ptr<rendezvous::StoreServer> server_;
  net::Endpoint address_;
  launch::JobStore store_;
  launch::JobBoard board_;
  std::optional<Share> share_;
  Terminal terminal_;
};

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

void refuse_without_others(const HostOptions& options) {
  if (options.expects_others() || options.world_size == 0) return;
  throw Error(ErrorCode::InvalidArgument, "--world-size goes with --share or --listen");
}

void refuse_in_rank(const HostOptions& options) {
  if (options.expects_others()) {
    throw Error(
        ErrorCode::InvalidArgument,
        "--share and --listen start a job, but RANK is set (or mpirun or srun is at work): this "
        "process is one rank of a job that another launcher has started; unset RANK, or "
        "leave them out");
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
  if (options.share) encrypt_unless_told();
  if (has_servers(ranks.request)) return Host(ranks, options, signals).run();
  const int workers = static_cast<int>(ranks.workers.size());
  if (options.all_workers(workers) == 0) {
    throw Error(ErrorCode::InvalidArgument,
                "--listen needs --world-size: the workers over all machines");
  }
  if (options.all_workers(workers) < workers) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("--world-size {} counts the workers of all machines, and this one "
                            "alone has {}",
                            options.world_size, workers));
  }
  return Host(ranks, options, signals).run();
}

}  // namespace bimetal::cli
