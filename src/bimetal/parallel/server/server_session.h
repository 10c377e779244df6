#pragma once
// A server's side of one connection: it checks the messages of a worker or another server, and
// passes them on. Private to parameter_server.cpp.
//
// Whether a client belongs to this job: the same program, model and settings.

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/parallel/server/link/link.h"
#include "bimetal/parallel/server/link/message.h"

namespace bimetal::parallel::server {

class ShardStore;
class ServerSession;

/// The code with which a server refuses the former leader, which leads no more.
inline constexpr auto kDeposed = ErrorCode::Aborted;

/// The functions that sessions need of their server. All run on its thread.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  /// Judges who wants in: an Error is the refusal. The number that it goes by; nothing where that
  /// is not known yet: then the owner calls join_now() later.
  virtual std::optional<int> admit(ServerSession& session, const Join& join) = 0;
  virtual void on_admitted(ServerSession& session) = 0;
  virtual void on_staged(ServerSession& session, std::uint64_t lease, bool finite) = 0;
  virtual void on_done(ServerSession& session, std::uint64_t lease, const Done& done) = 0;
  virtual void on_said(ServerSession& session, Said said) = 0;
  /// An update that this server may lack, from one that follows it.
  virtual void on_order(ServerSession& session, std::uint64_t version, const Apply& update) = 0;
  virtual void on_caught_up(ServerSession& session, std::uint64_t version) = 0;
  virtual void on_state(ServerSession& session, Body state) = 0;
  /// Another server leads the job.
  virtual void on_deposed(const Error& why) = 0;
  /// The server that leads the job, as far as this one knows.
  virtual int leading() const = 0;
  /// `why` is empty where the other side has left in good order.
  virtual void on_gone(ServerSession& session, const std::string& why) = 0;
};

class ServerSession final : public LinkHandler {
 public:
  ServerSession(std::shared_ptr<Link> link, ShardStore& store, SessionOwner& owner);
  ~ServerSession() override;

  void start() { link_->start(*this); }
  /// Sends all of the shard once it is at least as new as was asked for, and earlier answers have
  /// left. Sends the newest version then.
  void serve_pull();
  /// The new coordinator knows nothing of older terms' versions: requests of an older term are
  /// answered with the present version.
  void begin_term(std::uint32_t term);

  /// Admits one that had to wait for its number.
  void join_now();

  bool admitted() const noexcept { return number_.has_value(); }
  Role role() const noexcept { return role_; }
  int number() const noexcept { return number_.value_or(-1); }
  /// The client's Join message, without the facts.
  const Join& join() const noexcept { return join_; }
  Link& link() noexcept { return *link_; }
  Silence& silence() noexcept { return silence_; }

  std::span<std::byte> place(const net::FrameHeader& header) override;
  void on_message(const net::FrameHeader& header, std::span<const std::byte> body) override;
  void on_closed(const Error& why) override;

 private:
  void on_join(std::span<const std::byte> body);
  void enter();
  void on_worker_message(MessageKind kind, const net::FrameHeader& header,
                         std::span<const std::byte> body);
  void on_server_message(MessageKind kind, const net::FrameHeader& header,
                         std::span<const std::byte> body);
  std::span<std::byte> place_of_state(const net::FrameHeader& header);
  void on_pull(const net::FrameHeader& header);
  void require_own(std::uint64_t lease) const;

  std::shared_ptr<Link> link_;
  Silence silence_;
  ShardStore& store_;
  SessionOwner& owner_;
  Role role_ = Role::worker;
  std::optional<int> number_;
  Join join_;
  bool waiting_ = false;  ///< for its number
  struct Pull {
    std::uint64_t version;  ///< that it waits for
    comm::Scheme scheme;
    std::uint64_t term;
    double steps_ahead;
  };
  std::deque<Pull> pulls_;  ///< to be answered, in that order
  bool sending_ = false;    ///< the answer to the one before
  std::uint32_t term_ = 0;
  Body state_;  ///< as far as it has come
  bool leaving_ = false;
};

/// Error(ProtocolMismatch) that names both versions.
void require_same_release(const Join& join, const std::string& own);

/// Error(CallMismatch) that gives the first fact that differs, as each side has it.
void require_same_facts(const Join& join, const std::vector<std::string>& own);

}  // namespace bimetal::parallel::server
