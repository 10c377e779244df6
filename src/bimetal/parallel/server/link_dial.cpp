// How a worker or a server reaches another server.
#include <utility>

#include "bimetal/net/tcp/dial.h"
#include "bimetal/parallel/server/link.h"

namespace bimetal::parallel::server {

asio::awaitable<std::shared_ptr<Link>> dial_server(net::Endpoint server, std::string name,
                                                   Credentials credentials,
                                                   std::atomic<std::uint64_t>& bytes_sent,
                                                   Deadline deadline) {
  net::DialRequest request{.addresses = {std::move(server)},
                           .name = std::move(name),
                           .token = std::move(credentials.token),
                           .hello = {},
                           .deadline = deadline};
  request.hello.service = net::Service::Parameters;
  request.hello.job = net::digest_of_job(credentials.job_id);
  request.hello.encrypted = credentials.encryption == net::Encryption::on;
  auto dialed = co_await net::dial(std::move(request));
  co_return std::make_shared<Link>(std::move(dialed.socket), dialed.keys, Link::Side::client,
                                   bytes_sent);
}

}  // namespace bimetal::parallel::server
