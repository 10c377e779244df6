#pragma once
// Machines that find each other without a token file and without a port: what `--share` does on the
// first machine of a job, and `join` on the others.

#include <optional>
#include <string>
#include <vector>

#include "bimetal/cli/terminal.h"
#include "bimetal/net/discovery/shared_job.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/pairing/pairing.h"
#include "bimetal/net/token.h"

namespace bimetal::cli {

/// How others get into a job.
struct HostOptions {
  std::string listen;      ///< ADDR:PORT; empty: the job is on this machine alone
  int world_size = 0;      ///< workers over all machines
  std::string token_file;  ///< may be empty on loopback
  bool share = false;      ///< others are let in by a code (share.h)

  bool expects_others() const { return share || !listen.empty(); }
  /// The workers over all machines, `here` of them on this one. 0: the user has to say.
  int all_workers(int here) const { return world_size == 0 && share ? here + 1 : world_size; }
};

/// The port of a shared job unless the user says otherwise.
inline constexpr std::uint16_t kSharePort = 29400;

/// This machine's name, for messages on the others.
std::string own_host_name();

/// Connections of the job are encrypted from now on, unless BIMETAL_ENCRYPTION says otherwise.
void encrypt_unless_told(bool encrypted = true);

/// The addresses by which others reach this machine, the one to prefer first.
/// Error(InvalidArgument) where it has no network.
std::vector<std::string> addresses_to_share();

/// The address at which `--share` listens for machines that want to join. `--listen` may set it.
net::Endpoint share_endpoint(const HostOptions& options, std::uint16_t port = kSharePort);

/// A shared job, or something else that others are let into by a code, for as long as they may join
/// it.
class Share {
 public:
  /// `store`: the job's. `port`: where it is found unless `options` say. The code is not shown yet.
  Share(const HostOptions& options, const net::Token& token, std::uint16_t store,
        std::uint16_t port = kSharePort);

  /// Others see it by `bimetal join` alone, or, for another `purpose`, by the command that joins
  /// that. Says what is missing if others can't see it.
  void announce(const std::string& job, int workers, const std::string& purpose = "");

  /// The instructions for the other machine, and the code.
  std::string invitation() const;
  /// "bimetal join 192.168.1.5", with the port where it is another one.
  std::string how_to_join() const;
  /// "192.168.1.5", likewise.
  std::string place() const;
  const std::string& first_code() const { return host_->first_code(); }

 private:
  std::uint16_t usual_port_;
  std::string address_;
  std::optional<net::pairing::Host> host_;
  std::optional<net::discovery::Announcement> announcement_;
};

/// Shows the jobs that are shared on the network, and lets the user choose one. Error(Unsupported)
/// where this machine can't see any; Timeout where there is none: both say what to type instead.
net::discovery::SharedJob choose_job(Terminal& terminal, const std::string& purpose = "");

/// Asks to be let into the job at one of these addresses, by the code or because both remember each
/// other. Nothing where a job is that is not shared. `place`: the host, as the user calls it.
std::optional<net::pairing::Admission> ask_to_be_let_in(std::vector<net::Endpoint> addresses,
                                                        const std::string& place,
                                                        Deadline deadline);

/// HOST or HOST:PORT.
net::Endpoint parse_host(const std::string& text, std::uint16_t port = kSharePort);

}  // namespace bimetal::cli
