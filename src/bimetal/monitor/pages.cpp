#include "bimetal/monitor/pages.h"

#include <fmt/format.h>

#include <array>
#include <asio/buffer.hpp>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <exception>
#include <string_view>
#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/net/http/http_message.h"
#include "bimetal/net/noise.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/tcp_mesh_impl.h"

namespace bimetal::monitor {
namespace {

constexpr std::string_view kPurpose = "bimetal monitor";

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

using asio::ip::tcp;

// Some hundred bytes for each worker.
constexpr std::size_t kMaxAnswerBytes = 4u << 20;

Error lost(const std::string& monitor, const std::string& why) {
  return Error(
      ErrorCode::PeerLost,
      fmt::format("no monitor can be reached at {} ({}): the job has ended, or was started "
                  "without --monitor, or this is not the address that it said",
                  monitor, why));
}

Error silent(const std::string& monitor) {
  return Error(ErrorCode::Timeout,
               fmt::format("{} does not answer: check the address, and whether a firewall is "
                           "between this machine and the job's",
                           monitor));
}

asio::awaitable<tcp::socket> connect(net::Endpoint monitor, Deadline deadline) {
  const auto name = net::to_string(monitor);
  std::vector<tcp::endpoint> addresses;
  try {
    addresses = co_await net::resolve(monitor, deadline);
  } catch (const std::system_error& error) {
    throw lost(name, error.code().message());
  }
  net::ConnectRace race(co_await asio::this_coro::executor, addresses);
  auto winner = co_await race.next(deadline);
  if (winner) co_return std::move(winner->socket);
  if (deadline.expired()) throw silent(name);
  throw lost(name, race.troubles());
}

asio::awaitable<std::string> read_to_end(tcp::socket& socket, std::error_code& error) {
  std::string answer;
  std::array<char, 16384> buffer;
  while (!error && answer.size() <= kMaxAnswerBytes) {
    const auto read = co_await socket.async_read_some(
        asio::buffer(buffer), asio::redirect_error(asio::use_awaitable, error));
    answer.append(buffer.data(), read);
  }
  co_return answer;
}

asio::awaitable<std::string> exchange(net::Endpoint monitor, std::string request,
                                      Deadline deadline) {
  const auto name = net::to_string(monitor);
  auto socket = co_await connect(monitor, deadline);
  const net::Watchdog watchdog(socket, deadline);
  std::error_code error;
  co_await asio::async_write(socket, asio::buffer(request),
                             asio::redirect_error(asio::use_awaitable, error));
  std::string answer;
  if (!error) answer = co_await read_to_end(socket, error);
  if (watchdog.barked()) throw silent(name);
  if (error && error != asio::error::eof) throw lost(name, error.message());
  if (answer.empty()) throw lost(name, "it hung up");
  co_return answer;
}

std::string body_of(std::string answer, const std::string& monitor) {
  const auto end = answer.find(net::kEndOfHead);
  const auto head =
      end == std::string::npos
          ? std::nullopt
          : net::parse_answer(std::string_view(answer).substr(0, end + net::kEndOfHead.size()));
  if (!head || answer.size() > kMaxAnswerBytes) {
    throw Error(ErrorCode::ProtocolMismatch,
                fmt::format("what answers at {} is no monitor of a job", monitor));
  }
  if (head->status == 401) {
    throw Error(ErrorCode::Unauthorized,
                fmt::format("the monitor at {} asks for another token: pass the job's with "
                            "--token-file, or set BIMETAL_TOKEN_FILE or BIMETAL_TOKEN",
                            monitor));
  }
  if (head->status != 200) {
    throw Error(ErrorCode::ProtocolMismatch,
                fmt::format("{} answered with HTTP status {}: it is no monitor of a job", monitor,
                            head->status));
  }
  auto body = answer.substr(end + net::kEndOfHead.size());
  if (head->length && body.size() < *head->length) throw lost(monitor, "it hung up in the middle");
  return body;
}

}  // namespace

net::Token monitor_token(const net::Token& job) {
  if (job.empty()) return {};
  net::ensure_sodium();
  crypto_auth_hmacsha256_state state;
  std::array<unsigned char, crypto_auth_hmacsha256_BYTES> code;
  crypto_auth_hmacsha256_init(&state, bytes_of(job.text()), job.text().size());
  crypto_auth_hmacsha256_update(&state, bytes_of(kPurpose), kPurpose.size());
  crypto_auth_hmacsha256_final(&state, code.data());
  std::array<char, 2 * code.size() + 1> text;
  sodium_bin2hex(text.data(), text.size(), code.data(), code.size());
  auto token = net::Token::from_text({text.data(), text.size() - 1});
  sodium_memzero(&state, sizeof state);
  sodium_memzero(code.data(), code.size());
  sodium_memzero(text.data(), text.size());
  return token;
}

std::string fetch_page(const net::Endpoint& monitor, std::string_view path, const net::Token& token,
                       Deadline deadline) {
  const auto name = net::to_string(monitor);
  asio::io_context io{1};
  std::exception_ptr failure;
  std::string answer;
  asio::co_spawn(io, exchange(monitor, net::encode_get(path, name, token.text()), deadline),
                 [&](std::exception_ptr error, std::string text) {
                   failure = error;
                   answer = std::move(text);
                   io.stop();
                 });
  io.run();
  if (failure) std::rethrow_exception(failure);
  return body_of(std::move(answer), name);
}

}  // namespace bimetal::monitor
