#include "bimetal/serving/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/serving/client_connection.h"

namespace bimetal::serving {

/// The arguments of predict().
struct Question {
  std::span<const std::byte> values;
  comm::DType dtype = comm::DType::uint8;
  std::int64_t samples = 0;
};

namespace {

/// Requests on their way at once: the server computes one while it receives the next.
constexpr std::int64_t kAtOnce = 2;

void require_sound(const Question& question, const ModelFacts& facts) {
  const auto& [values, dtype, samples] = question;
  if (facts.context > 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("'{}' is a language model: it goes on with texts (bimetal generate)",
                            facts.model));
  }
  if (!is_sample_type(dtype)) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("samples must be uint8 (pixels), or float32 or float64 (normalised), not {}",
                    comm::to_string(dtype)));
  }
  const auto each = static_cast<std::size_t>(facts.values_per_sample()) * comm::size_of(dtype);
  if (samples >= 1 && values.size() == static_cast<std::size_t>(samples) * each) return;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("the model '{}' takes images of {}x{}x{}; {} samples in {} bytes of {} are none",
                  facts.model, facts.channels, facts.height, facts.width, samples, values.size(),
                  comm::to_string(dtype)));
}

}  // namespace

struct Client::Impl {
  explicit Impl(const ClientOptions& options) : connection(options) {}

  asio::awaitable<Predicted> exchange(Question question);
  std::uint64_t ask(const Question& question, std::int64_t first, std::int64_t count);
  asio::awaitable<Figures> fetch_figures();
  asio::awaitable<std::int64_t> write(const TextRequest& wanted, const Body& body,
                                      Client::TextReader read);

  ClientConnection connection;
};

std::uint64_t Client::Impl::ask(const Question& question, std::int64_t first, std::int64_t count) {
  const auto each = question.values.size() / static_cast<std::size_t>(question.samples);
  return connection.send(MessageKind::predict, static_cast<std::uint64_t>(count), question.dtype,
                         question.values.subspan(each * static_cast<std::size_t>(first),
                                                 each * static_cast<std::size_t>(count)));
}

asio::awaitable<Predicted> Client::Impl::exchange(Question question) {
  const auto classes = connection.facts().classes;
  const auto samples = question.samples;
  const auto most = most_samples(connection.facts(), question.dtype);
  const auto requests = (samples + most - 1) / most;
  Predicted all;
  all.logits.resize(static_cast<std::size_t>(classes * samples));
  connection.await_answers();
  std::int64_t sent = 0;
  std::uint64_t first = 0;
  for (std::int64_t answers = 0; answers < requests; ++answers) {
    for (; sent < std::min(requests, answers + kAtOnce); ++sent) {
      const auto number = ask(question, sent * most, std::min(most, samples - sent * most));
      if (sent == 0) first = number;
    }
    const auto message = co_await connection.next_answer();
    const auto index = static_cast<std::int64_t>(message.header.sequence - first);
    if (message.kind() != MessageKind::predicted || index < 0 || index >= sent) {
      connection.answered_amiss();
    }
    const auto count = std::min(most, samples - index * most);
    const auto part = decode_predicted(message.body, static_cast<std::size_t>(classes * count));
    std::ranges::copy(part.logits, all.logits.begin() + index * most * classes);
    if (answers == 0) all.weights = part.weights;
    all.weights.oldest = std::min(all.weights.oldest, part.weights.oldest);
    all.weights.newest = std::max(all.weights.newest, part.weights.newest);
  }
  co_return all;
}

asio::awaitable<Figures> Client::Impl::fetch_figures() {
  connection.await_answers();
  connection.send(MessageKind::ask_figures, 0, comm::DType::uint8, {});
  const auto message = co_await connection.next_answer();
  if (message.kind() != MessageKind::figures) connection.answered_amiss();
  co_return decode_figures(message.body);
}

asio::awaitable<std::int64_t> Client::Impl::write(const TextRequest& wanted, const Body& body,
                                                  Client::TextReader read) {
  connection.await_answers();
  const auto number =
      connection.send(MessageKind::write, wanted.prompt.size(), comm::DType::int64, body);
  for (std::int64_t come = 0;;) {
    const auto message = co_await connection.next_answer();
    if (message.kind() != MessageKind::written || message.header.sequence != number) {
      connection.answered_amiss();
    }
    const auto piece = decode_text_piece(message.body);
    come += static_cast<std::int64_t>(piece.tokens.size());
    if (come > wanted.tokens) connection.answered_amiss();
    if (read) read(piece.tokens);
    if (piece.last) co_return piece.step;
  }
}

Client::Client(const ClientOptions& options) : impl_(std::make_unique<Impl>(options)) {}

Client::~Client() = default;

ModelFacts Client::facts(Deadline deadline) {
  impl_->connection.connect(deadline);
  return impl_->connection.facts();
}

Predicted Client::predict(std::span<const std::byte> values, comm::DType dtype,
                          std::int64_t samples, Deadline deadline) {
  auto& connection = impl_->connection;
  connection.connect(deadline);
  const Question question{values, dtype, samples};
  require_sound(question, connection.facts());
  return connection.run(impl_->exchange(question), deadline);
}

std::int64_t Client::write(const TextRequest& wanted, const TextReader& read, Deadline deadline) {
  auto& connection = impl_->connection;
  connection.connect(deadline);
  if (connection.facts().context == 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the model '{}' is no language model: it predicts the classes of "
                            "images (bimetal predict)",
                            connection.facts().model));
  }
  const auto body = encode(wanted);
  return connection.run(impl_->write(wanted, body, read), deadline);
}

Figures Client::figures(Deadline deadline) {
  auto& connection = impl_->connection;
  connection.connect(deadline);
  return connection.run(impl_->fetch_figures(), deadline);
}

}  // namespace bimetal::serving
