#pragma once
// What a client must show to a job's servers, and how it connects with them.

#include <asio/awaitable.hpp>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/net/encryption.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/tcp/authenticate.h"
#include "bimetal/net/token.h"
#include "bimetal/parallel/server/link/link.h"

namespace bimetal::parallel::server {

struct Credentials {
  net::Token token;
  net::Encryption encryption = net::Encryption::off;
  std::string job_id;
};

/// Judges who has proved the token: clients of this job, that want encryption if it does.
net::Admit admit_of(const Credentials& credentials);

/// Connects to a server, whose `name` is for messages. Errors of net::dial. `bytes_sent` must
/// outlive the connection, which is yet to be started. `on_trouble`: net::DialRequest's.
asio::awaitable<std::shared_ptr<Link>> dial_server(
    net::Endpoint server, std::string name, Credentials credentials,
    std::atomic<std::uint64_t>& bytes_sent, Deadline deadline,
    std::function<void(const std::string& trouble)> on_trouble = {});

}  // namespace bimetal::parallel::server
