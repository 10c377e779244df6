#pragma once
// A small service beside a job's servers, at an address of its own. Clients that have shown the
// job's token talk to it by a Link. Also its other side, for a thread that has nothing else to do.

#include <asio/io_context.hpp>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/link/link.h"

namespace bimetal::parallel::server {

/// Serves from a thread of its own until it is destroyed.
class LinkServer {
 public:
  /// Answers one client, on the service's thread. It lives as long as its connection: the service
  /// sees to the end of that.
  class Session : public LinkHandler {
   public:
    /// Several times per second. The client is told of an exception from it, as with on_message().
    virtual void on_tick() {}

   private:
    friend class LinkServer;
    void on_closed(const Error& why) final;
    bool go_on(std::chrono::milliseconds silence);

    std::shared_ptr<Link> connection_;
    bool ended_ = false;
  };
  using Open = std::function<std::unique_ptr<Session>(Link&)>;

  /// Clients from which nothing, no heartbeat either, has come for `silence` are given up. Port 0:
  /// any. Errors of net::Listener.
  LinkServer(const net::Endpoint& listen, const Credentials& credentials,
             std::chrono::milliseconds silence, Open open);
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;

  net::Endpoint endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Runs an io_context of its own while it waits. Use from one thread.
class LinkClient : public LinkHandler {
 public:
  /// `name` is the server's, for messages.
  explicit LinkClient(std::string name) : name_(std::move(name)) {}
  ~LinkClient() override;

  /// Errors of net::dial. `on_trouble`: net::DialRequest's.
  void connect(net::Endpoint server, Credentials credentials, Deadline deadline,
               std::function<void(const std::string& trouble)> on_trouble = {});

  void on_message(const net::FrameHeader& header, std::span<const std::byte> body) final;
  void on_closed(const Error& why) final;

 protected:
  virtual void on_answer(const net::FrameHeader& header, std::span<const std::byte> body) = 0;

  Link& link() { return *link_; }
  const std::string& name() const noexcept { return name_; }

  /// Waits until the condition holds, which is asked several times per second. Errors: the server's
  /// refusal, or the end of the connection; Timeout; those of the condition.
  void wait(Deadline deadline, const std::function<bool()>& condition);

 private:
  const std::string name_;
  asio::io_context io_{1};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::shared_ptr<Link> link_;
  std::exception_ptr failure_;
};

}  // namespace bimetal::parallel::server
