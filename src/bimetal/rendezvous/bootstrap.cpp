#include "bimetal/rendezvous/bootstrap.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/net/mesh.h"
#include "bimetal/net/tcp/tcp_mesh.h"
#include "bimetal/rendezvous/member_record.h"

namespace bimetal::rendezvous {
namespace {

// How long one look for a missing rank lasts before the next look at faults that others found.
constexpr std::chrono::milliseconds kSlice{250};
// The time kept to ask once more who is there, and to say so.
constexpr std::chrono::milliseconds kLongestEpilogue{500};

/// One rank's meeting with the others.
class Meeting {
 public:
  Meeting(Store& store, int rank, int size, const BootstrapOptions& options, Deadline deadline)
      : store_(store), rank_(rank), size_(size), options_(options), deadline_(deadline) {}

  std::unique_ptr<net::Mesh> connect();

 private:
  std::vector<std::string> listen_hosts() const;
  void claim(const MemberRecord& self);
  void publish(const MemberRecord& self);
  void gather();
  void gather_for_all(Deadline until);
  void take_gathered(Deadline until);
  std::optional<std::string> await(const std::string& key, Deadline until);
  void check_release(int peer, const MemberRecord& member);
  void check(int peer, const MemberRecord& member);
  void check_reachable() const;
  void check_faults();
  void tell_refused(const Error& error) noexcept;
  [[noreturn]] void report_fault(const std::string& message,
                                 ErrorCode code = ErrorCode::InvalidArgument);
  void report_missing();
  std::string key(std::string_view name) const {
    return fmt::format("{}/{}", options_.prefix, name);
  }
  std::string rank_key(int peer) const { return key(fmt::format("rank/{}", peer)); }

  Store& store_;
  const int rank_;
  const int size_;
  const BootstrapOptions& options_;
  const Deadline deadline_;
  std::map<int, MemberRecord> members_;
};

std::unique_ptr<net::Mesh> Meeting::connect() {
  net::TcpMeshOptions mesh;
  mesh.job_id = options_.job_id;
  mesh.token = options_.token;
  mesh.listen_hosts = listen_hosts();
  mesh.encryption = options_.encryption;
  mesh.peer_timeout = options_.peer_timeout;
  mesh.complete_up_to = options_.complete_up_to;
  mesh.while_connecting = [this] { check_faults(); };
  net::TcpMeshBuilder builder(rank_, size_, mesh);

  MemberRecord self;
  self.world_size = size_;
  self.host = options_.host_name.empty() ? asio::ip::host_name() : options_.host_name;
  self.process = own_process_id();
  self.encrypted = options_.encryption == net::Encryption::on;
  self.listening = builder.listening();
  self.release = options_.release;
  claim(self);
  publish(self);
  gather();
  check_reachable();
  // Ranks that listen beyond loopback all do (see check_reachable): rank 0 speaks for them.
  if (rank_ == 0) net::note_if_plain(self.listening.front().host, options_.encryption);

  std::vector<std::vector<net::Endpoint>> endpoints;
  std::vector<std::string> hosts;
  for (const auto& [peer, member] : members_) {
    endpoints.push_back(member.listening);
    hosts.push_back(member.host);
  }
  try {
    return std::move(builder).connect(endpoints, deadline_, std::move(hosts));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Unauthorized) tell_refused(error);
    throw;
  }
}

/// A rank that is refused for its token tells the others, who would wait for it.
void Meeting::tell_refused(const Error& error) noexcept try {
  const auto who = fmt::format("rank {} on {}", rank_, describe(members_.at(rank_)));
  note_failure(store_, fault_key(options_.prefix),
               {error.code(), fmt::format("{}: {}", who, error.what()), rank_}, deadline_);
} catch (const Error& lost) {
  log(LogLevel::info, "rank {} cannot tell why it ends: {}", rank_, lost.what());
}

std::vector<std::string> Meeting::listen_hosts() const {
  if (!options_.listen_host.empty()) return {options_.listen_host};
  const std::string towards_store = store_.local_address();
  // A job that stays on loopback does not depend on other networks.
  const bool stays_here = towards_store.empty() || net::is_loopback(towards_store);
  const auto own = stays_here ? std::vector<net::InterfaceAddress>() : net::own_addresses();
  return net::addresses_to_advertise(options_.interfaces, towards_store, own);
}

/// The first process to claim a rank owns it; a second one ends the meeting for all.
void Meeting::claim(const MemberRecord& self) {
  const auto claimant = store_.add(key(fmt::format("claims/{}", rank_)), 1, deadline_);
  store_.set(key(fmt::format("claimant/{}/{}", rank_, claimant)), describe(self), deadline_);
  if (claimant == 1) return;
  const std::string first = store_.get(key(fmt::format("claimant/{}/1", rank_)), deadline_);
  report_fault(
      fmt::format("two processes claim rank {}: {} and {}; give every process a rank of "
                  "its own",
                  rank_, first, describe(self)));
}

void Meeting::publish(const MemberRecord& self) {
  members_[rank_] = self;
  store_.set(rank_key(rank_), encode_member(self), deadline_);
}

/// Waits until every rank has published itself. Short of the deadline by a little, so that the time
/// suffices to find out who is missing. Rank 0 asks for each of the others, and they ask for its
/// list: n² questions would keep the store busy for longer than all else takes.
void Meeting::gather() {
  const auto epilogue =
      std::min<Deadline::Clock::duration>(deadline_.remaining() / 10, kLongestEpilogue);
  const auto until = Deadline::at(deadline_.time() - epilogue);
  check_faults();
  if (rank_ == 0) {
    gather_for_all(until);
  } else {
    take_gathered(until);
  }
}

void Meeting::gather_for_all(Deadline until) {
  for (int peer = 1; peer < size_; ++peer) {
    const auto record = await(rank_key(peer), until);
    if (!record) return report_missing();
    check(peer, decode_member(*record));
  }
  store_.set(key("members"), encode_members(members_), deadline_);
}

/// If rank 0 has ended before it could tell, each rank finds by itself who is there.
void Meeting::take_gathered(Deadline until) {
  const auto first = await(rank_key(0), until);
  if (!first) return report_missing();
  check(0, decode_member(*first));  // of another version it may gather nothing
  const auto gathered = await(key("members"), until);
  if (!gathered) return report_missing();
  const auto members = decode_members(*gathered, size_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) check(peer, members[static_cast<std::size_t>(peer)]);
  }
}

/// Nothing if it has not come by then; throws a fault that others have found meanwhile.
std::optional<std::string> Meeting::await(const std::string& key, Deadline until) {
  for (;;) {
    try {
      return store_.get(key, min(until, Deadline::after(kSlice)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout) throw;
    }
    if (until.expired()) return std::nullopt;
    check_faults();
  }
}

void Meeting::check_release(int peer, const MemberRecord& member) {
  const MemberRecord& self = members_.at(rank_);
  if (member.release == self.release) return;
  const auto version = [](const MemberRecord& of) {
    return of.release.empty() ? std::string("an older Bimetal") : "Bimetal " + of.release;
  };
  report_fault(
      fmt::format("rank {} on {} runs {}, rank {} on {} {}; install the same version on "
                  "every machine",
                  rank_, describe(self), version(self), peer, describe(member), version(member)),
      ErrorCode::ProtocolMismatch);
}

void Meeting::check(int peer, const MemberRecord& member) {
  check_release(peer, member);
  if (member.world_size != size_) {
    report_fault(fmt::format(
        "rank {} on {} was started with world size {}, rank {} on {} with {}; "
        "start all ranks with the same",
        rank_, describe(members_.at(rank_)), size_, peer, describe(member), member.world_size));
  }
  const MemberRecord& self = members_.at(rank_);
  if (member.encrypted != self.encrypted) {
    const auto kind = [](const MemberRecord& of) { return of.encrypted ? "encrypted" : "plain"; };
    report_fault(
        fmt::format("rank {} on {} wants {} connections, rank {} on {} {} ones; set "
                    "BIMETAL_ENCRYPTION alike on every machine",
                    rank_, describe(self), kind(self), peer, describe(member), kind(member)));
  }
  members_[peer] = member;
}

/// A rank that met the store on loopback listens there alone: ranks elsewhere would try in vain.
void Meeting::check_reachable() const {
  const MemberRecord& self = members_.at(rank_);
  for (const auto& [peer, member] : members_) {
    const bool here = net::is_loopback(self.listening.front().host);
    if (here == net::is_loopback(member.listening.front().host)) continue;
    const auto& [hidden_rank, hidden] = here ? std::pair(rank_, self) : std::pair(peer, member);
    const auto& [open_rank, open] = here ? std::pair(peer, member) : std::pair(rank_, self);
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("rank {} on {} listens on loopback ({}) and rank {} on {} on {}: they "
                            "cannot reach each other; give every rank the store's network address, "
                            "not localhost",
                            hidden_rank, describe(hidden), hidden.listening.front().host, open_rank,
                            describe(open), open.listening.front().host));
  }
}

void Meeting::check_faults() {
  const auto fault = noted_failure(store_, fault_key(options_.prefix), deadline_);
  if (!fault) return;
  log(LogLevel::info, "rank {} does not wait any longer: {}", rank_, fault->what());
  throw *fault;
}

void Meeting::report_fault(const std::string& message, ErrorCode code) {
  const Error fault(code, message);
  note_failure(store_, fault_key(options_.prefix), fault, deadline_);
  throw fault;
}

void Meeting::report_missing() {
  std::string missing;
  std::string joined;
  for (int peer = 0; peer < size_; ++peer) {
    if (!members_.contains(peer)) {
      if (const auto record = store_.try_get(rank_key(peer), deadline_)) {
        check(peer, decode_member(*record));
      }
    }
    const auto member = members_.find(peer);
    std::string& list = member == members_.end() ? missing : joined;
    if (!list.empty()) list += ", ";
    list += member == members_.end() ? fmt::format("{}", peer)
                                     : fmt::format("{} on {}", peer, describe(member->second));
  }
  if (missing.empty()) return;
  throw Error(ErrorCode::Timeout, fmt::format("of {} these did not join in time: {}; joined: {}",
                                              counted(size_, "rank"), missing, joined));
}

}  // namespace

std::string fault_key(std::string_view prefix) {
  return fmt::format("{}/fault", prefix);
}

std::unique_ptr<net::Mesh> connect_mesh(Store& store, int rank, int size,
                                        const BootstrapOptions& options, Deadline deadline) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("rank {} is not within a world of {} ranks", rank, size));
  }
  if (size == 1) {
    return net::make_solo_mesh(options.host_name.empty() ? asio::ip::host_name()
                                                         : options.host_name);
  }
  return Meeting(store, rank, size, options, deadline).connect();
}

void note_failure(Store& store, std::string_view key, const Error& failure, Deadline deadline) {
  if (store.add(std::string(key) + "/notes", 1, deadline) > 1) return;
  WireWriter out;
  write_error(out, failure);
  const auto& bytes = out.bytes();
  store.set(key, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, deadline);
}

std::optional<Error> noted_failure(Store& store, std::string_view key, Deadline deadline) {
  const auto note = store.try_get(key, deadline);
  return note ? std::optional(read_error(std::as_bytes(std::span(*note)))) : std::nullopt;
}

}  // namespace bimetal::rendezvous
