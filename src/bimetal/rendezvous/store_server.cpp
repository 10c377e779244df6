#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <thread>
#include <vector>

#include "bimetal/base/log.h"
#include "bimetal/net/link/credentials.h"
#include "bimetal/net/tcp/run_handlers.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/rendezvous/store_session.h"

namespace bimetal::rendezvous {

struct StoreServer::Impl {
  Impl(const net::Endpoint& listen, const net::Token& token, net::Encryption encryption)
      : listener(io, listen, listener_options(token, encryption)), bound(listener.endpoint()) {
    listener.start();
    thread = std::thread([this] {
      net::run_handlers(io, [](const Error& error) {
        log(LogLevel::error, "the rendezvous store has failed to answer: {}", error.what());
      });
    });
  }

  ~Impl() {
    asio::post(io, [this] {
      listener.stop();
      for (const auto& session : sessions) {
        if (const auto alive = session.lock()) alive->close();
      }
    });
    thread.join();  // the thread ends with the last session
  }

  net::ListenerOptions listener_options(const net::Token& token, net::Encryption encryption) {
    auto options = net::listener_options(net::Service::Store, {token, encryption, {}});
    options.on_connection = [this](asio::ip::tcp::socket socket,
                                   const net::AuthenticatedClient& client) {
      std::erase_if(sessions, [](const auto& session) { return session.expired(); });
      const auto session = std::make_shared<StoreSession>(std::move(socket), client.keys, table);
      sessions.push_back(session);
      session->start();
    };
    return options;
  }

  asio::io_context io{1};
  StoreTable table;
  std::vector<std::weak_ptr<StoreSession>> sessions;
  net::Listener listener;
  const net::Endpoint bound;
  std::thread thread;
};

StoreServer::StoreServer(const net::Endpoint& listen, const net::Token& token,
                         net::Encryption encryption)
    : impl_(std::make_unique<Impl>(listen, token, encryption)) {}

StoreServer::~StoreServer() = default;

net::Endpoint StoreServer::endpoint() const {
  return impl_->bound;
}

}  // namespace bimetal::rendezvous
