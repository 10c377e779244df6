// What a session does for the clients of a language model.

#include <fmt/format.h>

#include <utility>

#include "bimetal/serving/session.h"
#include "bimetal/serving/text_answering.h"

namespace bimetal::serving {

asio::awaitable<void> Session::take_text(net::FrameHeader header) {
  if (header.payload_bytes > kMaxRequestBytes) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("a text of {} bytes; at most {} are taken",
                                                        header.payload_bytes, kMaxRequestBytes));
  }
  Body body(header.payload_bytes);
  receiving_ = true;
  expect();
  co_await receive(header, body);
  receiving_ = false;
  if (is_open()) add_text(header.sequence, decode_text_request(body));
}

void Session::add_text(std::uint64_t sequence, TextRequest wanted) {
  const auto texts = owner_.texts();
  if (!texts) {
    return refuse_request(
        sequence, Error(ErrorCode::InvalidArgument,
                        fmt::format("the model '{}' is no language model: it predicts the classes "
                                    "of images (bimetal predict)",
                                    owner_.facts().model)));
  }
  TextJob job{.client = number_,
              .wanted = std::move(wanted),
              .arrived = std::chrono::steady_clock::now(),
              .tell = {}};
  job.tell = [&owner = owner_, weak = weak(), sequence](TextPiece piece,
                                                        const std::optional<Error>& failure) {
    owner.post([weak, sequence, failure, piece = std::move(piece)] {
      if (const auto self = weak.lock()) self->more_text(sequence, piece, failure);
    });
  };
  ++pending_;
  if (texts->add(std::move(job))) return;
  --pending_;
  refuse_request(sequence, Error(ErrorCode::Aborted,
                                 "the server is busy: too many texts wait already; try again "
                                 "later"));
}

void Session::more_text(std::uint64_t sequence, const TextPiece& piece,
                        const std::optional<Error>& failure) {
  if (failure || piece.last) {
    --pending_;
    room_.cancel();
  }
  if (failure) return refuse_request(sequence, *failure);
  send(MessageKind::written, sequence, piece.tokens.size(), encode(piece));
}

}  // namespace bimetal::serving
