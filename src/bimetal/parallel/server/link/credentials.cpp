#include "bimetal/parallel/server/link/credentials.h"

#include <optional>
#include <utility>

#include "bimetal/net/tcp/dial.h"

namespace bimetal::parallel::server {

net::Admit admit_of(const Credentials& credentials) {
  return [job = net::digest_of_job(credentials.job_id),
          encrypted = credentials.encryption ==
                      net::Encryption::on](const net::Hello& hello) -> std::optional<net::Refusal> {
    if (hello.job != job) return net::Refusal::Job;
    if (hello.encrypted != encrypted) return net::Refusal::Encryption;
    return std::nullopt;
  };
}

asio::awaitable<std::shared_ptr<Link>> dial_server(
    net::Endpoint server, std::string name, Credentials credentials,
    std::atomic<std::uint64_t>& bytes_sent, Deadline deadline,
    std::function<void(const std::string& trouble)> on_trouble) {
  net::DialRequest request{.addresses = {std::move(server)},
                           .name = std::move(name),
                           .token = std::move(credentials.token),
                           .hello = {},
                           .deadline = deadline,
                           .on_trouble = std::move(on_trouble)};
  request.hello.service = net::Service::Parameters;
  request.hello.job = net::digest_of_job(credentials.job_id);
  request.hello.encrypted = credentials.encryption == net::Encryption::on;
  auto dialed = co_await net::dial(std::move(request));
  co_return std::make_shared<Link>(std::move(dialed.socket), dialed.keys, Link::Side::client,
                                   bytes_sent);
}

}  // namespace bimetal::parallel::server
