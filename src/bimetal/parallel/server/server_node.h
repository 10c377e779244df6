#pragma once
// All of a server's state on its one thread. Private to parameter_server.cpp.

#include <asio/awaitable.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <deque>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "bimetal/net/tcp/handlers.h"
#include "bimetal/net/tcp/listener.h"
#include "bimetal/parallel/server/events.h"
#include "bimetal/parallel/server/link/link.h"
#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/server_session.h"

namespace bimetal::parallel::server {

struct ServerNode final : SessionOwner, CoordinatorPort, LinkHandler {
  ServerNode(const ServerOptions& given, ShardStore& shard)
      : options(given),
        store(shard),
        listener(io, options.listen, listener_options()),
        bound(listener.endpoint()),
        work(io.get_executor()),
        thread([this] { net::run_handlers(io, [this](const Error& error) { fail(error); }); }) {}

  ~ServerNode() override {
    asio::post(io, [this] {
      stopped = true;
      listener.stop();
      timer.cancel();
      for (auto& attempt : give_up) attempt.emit(asio::cancellation_type::terminal);
      if (upstream) upstream->close();
      for (const auto& session : sessions) session->link().close();
      sessions.clear();
      gone.clear();
      work.reset();
    });
    thread.join();
  }

  net::ListenerOptions listener_options();
  void start_ticking();
  asio::awaitable<void> tick_loop();
  void watch_workers();
  void watch_servers();
  void watch_leader();
  void tell_log();
  Patience patience_with(const Link& link) const;
  // How servers come together: server_takeover.cpp.
  void join_coordinator(const net::Endpoint& coordinator, Deadline deadline);
  void require_same_start(std::uint64_t version) const;
  asio::awaitable<void> connect_upstream(net::Endpoint coordinator, Deadline deadline);
  /// Servers that this one waits for.
  std::vector<int> awaited();
  /// One of them has died before it came.
  void never_came(int server);
  /// Work begins once every living server is there: each must see all updates.
  void begin_when_complete();

  void apply_here(std::uint64_t version, const Apply& update);
  void note_order(std::uint64_t version, const Apply& update);
  void send_state();

  // When server 0 dies: server_takeover.cpp.
  void follow_stand_in(const Error& why);
  void send_what_it_lacks(std::uint64_t its_version);
  bool ready_to_lead();
  void require_every_shard(const std::set<int>& keepers) const;
  void lead(CoordinatorOptions options);
  /// How far the training has come that these parameters hold.
  Position position() const;
  void pull_all();
  /// Asks a keeper of each other shard for its state, unless it is here or on its way.
  void ask_for_states();
  void fail(const Error& error) { events.push(FailedEvent{error}); }

  /// Runs `action` on the server's thread and gives its result to the caller's.
  template <typename Action>
  auto ask(Action action) {
    using Result = decltype(action());
    auto promise = std::make_shared<std::promise<Result>>();
    auto future = promise->get_future();
    asio::post(io, [promise, action] {
      try {
        if constexpr (std::is_void_v<Result>) {
          action();
          promise->set_value();
        } else {
          promise->set_value(action());
        }
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    });
    return future;
  }

  // SessionOwner
  std::optional<int> admit(ServerSession& session, const Join& join) override;
  void on_admitted(ServerSession& session) override;
  void on_staged(ServerSession& session, std::uint64_t lease, bool finite) override;
  void on_done(ServerSession& session, std::uint64_t lease, const Done& done) override;
  void on_said(ServerSession& session, Said said) override;
  void on_order(ServerSession& session, std::uint64_t version, const Apply& update) override;
  void on_caught_up(ServerSession& session, std::uint64_t version) override;
  void on_state(ServerSession& session, Body state) override;
  /// Tells the cause of the change of leaders, rather than that others go on.
  void on_deposed(const Error& why) override {
    fail(Error(ErrorCode::Timeout, why.what(), options.server));
  }
  /// The stand-in does not lead before it has begun to: until then it may find that it need not.
  int leading() const override { return leader == options.server && !coordinator ? 0 : leader; }
  void on_gone(ServerSession& session, const std::string& why) override;
  // CoordinatorPort
  void send_lease(int worker, const Lease& lease) override;
  void send_apply(std::uint64_t version, const Apply& update) override;
  void send_drop(std::uint64_t lease) override;
  void send_record(const StepEvent& step) override;
  // LinkHandler: server 0's orders
  std::span<std::byte> place(const net::FrameHeader& header) override;
  void on_message(const net::FrameHeader& header, std::span<const std::byte> body) override;
  void on_closed(const Error& why) override;

  bool coordinates() const noexcept { return options.server == leader; }
  /// Server 0's copy, which leads the job when server 0 has died; −1 without copies.
  int stand_in() const noexcept { return options.servers > options.shards ? options.shards : -1; }
  int shard() const noexcept { return options.server % options.shards; }
  ServerSession* session_of(Role role, int number);

  ServerOptions options;
  ShardStore& store;
  // Without the hint that one thread runs it: what that thread posts from within a handler (an
  // update of its own parameters) would come after later posts of others (a question for them).
  asio::io_context io;
  std::atomic<std::uint64_t> bytes_sent{0};
  EventQueue events;
  std::vector<std::unique_ptr<ServerSession>> sessions;
  std::vector<std::unique_ptr<ServerSession>> gone;  ///< to be freed outside of their callbacks
  std::unique_ptr<Coordinator> coordinator;
  std::shared_ptr<Link> upstream;                ///< to the coordinator
  std::list<asio::cancellation_signal> give_up;  ///< of each connect_upstream(), which it ends
  int leader = 0;                                ///< the coordinator's number
  bool welcomed = false;                         ///< by the leader
  Deadline connect_by = Deadline::at({});        ///< of a server that is still starting
  std::optional<net::Endpoint> stand_in_at;
  bool told_why = false;    ///< the coordinator has ended the job by an error of its own
  bool complete = false;    ///< all servers that live have been here
  std::set<int> never_met;  ///< servers that died before they followed the stand-in
  std::deque<std::pair<std::uint64_t, Apply>> orders;  ///< the newest, with copies alone
  std::map<int, std::uint64_t> followers;              ///< of the stand-in: their versions
  std::vector<std::uint64_t> void_leases;              ///< of the stand-in: done before it leads
  std::optional<Deadline> lead_by;
  bool has_deposed = false;  ///< server 0, which it may not know
  bool finished = false, stopped = false;
  Silence upstream_silence;
  std::map<int, Body> states;
  /// By shard: the server that is to send its state; nothing once it has come.
  std::map<int, std::optional<int>> asked_for_state;
  asio::steady_timer timer{io};
  net::Listener listener;
  const net::Endpoint bound;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::thread thread;
};

}  // namespace bimetal::parallel::server
