#include "bimetal/net/link/credentials.h"

#include <optional>
#include <utility>

namespace bimetal::net {
namespace {

JobDigest job_of(const Credentials& credentials) {
  return credentials.job_id.empty() ? JobDigest{} : digest_of_job(credentials.job_id);
}

}  // namespace

ListenerOptions listener_options(Service service, const Credentials& credentials) {
  ListenerOptions options;
  options.token = credentials.token;
  options.service = service;
  options.admit = [job = job_of(credentials), encrypted = credentials.encryption == Encryption::on](
                      const Hello& hello) -> std::optional<Refusal> {
    if (hello.job != job) return Refusal::Job;
    if (hello.encrypted != encrypted) return Refusal::Encryption;
    return std::nullopt;
  };
  return options;
}

DialRequest dial_request(Service service, Endpoint server, std::string name,
                         const Credentials& credentials, Deadline deadline) {
  DialRequest request{.addresses = {std::move(server)},
                      .name = std::move(name),
                      .token = credentials.token,
                      .hello = {},
                      .deadline = deadline};
  request.hello.service = service;
  request.hello.job = job_of(credentials);
  request.hello.encrypted = credentials.encryption == Encryption::on;
  return request;
}

}  // namespace bimetal::net
