#include "bimetal/parallel/server/link/who_leads.h"

#include <asio/error.hpp>
#include <chrono>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/parallel/server/link/link_server.h"

namespace bimetal::parallel::server {
namespace {

/// Training waits meanwhile. One that lives answers at once.
constexpr std::chrono::seconds kToAnswer{2};

class LeaderClient final : public LinkClient {
 public:
  using LinkClient::LinkClient;

  int ask(Deadline deadline) {
    link().send(MessageKind::ask_leader, {});
    wait(deadline, [this] { return answer_.has_value(); });
    return *answer_;
  }

  std::span<std::byte> place(const net::FrameHeader&) override {
    throw Error(ErrorCode::CorruptData, "tensors that nobody has asked for");
  }

 private:
  void on_answer(const net::FrameHeader& header, std::span<const std::byte>) override {
    if (static_cast<MessageKind>(header.operation) != MessageKind::leader) {
      throw Error(ErrorCode::CorruptData, "no answer to the question who leads");
    }
    answer_ = static_cast<int>(header.count);
  }

  std::optional<int> answer_;
};

/// Else it would be tried again: a server that starts may not listen yet.
void give_up_where_nobody_listens(const std::string& trouble) {
  const auto refused = asio::error::make_error_code(asio::error::connection_refused).message();
  if (trouble.find(refused) == std::string::npos) return;
  throw Error(ErrorCode::PeerLost, "nobody listens at its address: " + trouble);
}

}  // namespace

std::optional<int> who_leads(const net::Endpoint& server, const std::string& name,
                             const Credentials& credentials) {
  const auto deadline = Deadline::after(kToAnswer);
  try {
    LeaderClient client(name);
    client.connect(server, credentials, deadline, give_up_where_nobody_listens);
    return client.ask(deadline);
  } catch (const Error& error) {
    // Also that of a stranger, who listens there now.
    log(LogLevel::info, "{} does not say who leads the job: {}", name, error.what());
    return std::nullopt;
  }
}

}  // namespace bimetal::parallel::server
