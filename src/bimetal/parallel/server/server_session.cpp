#include "bimetal/parallel/server/server_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "bimetal/parallel/server/ledger/ledger.h"
#include "bimetal/parallel/server/ledger/worker_speed.h"
#include "bimetal/parallel/server/shard_store.h"

namespace bimetal::parallel::server {
namespace {

/// Parameters, and for each optimizer known up to three tensors like them, with room for names.
std::size_t most_state_bytes(const ShardStore& store) {
  std::size_t elements = 0;
  for (const auto& piece : store.plan().pieces) elements += static_cast<std::size_t>(piece.count);
  return 8 * 5 * elements + 1024 * store.plan().pieces.size() + kMaxBodyBytes;
}

// One that is being answered, and one whose answer is to follow without a gap.
constexpr std::size_t kMostPulls = 2;

[[noreturn]] void out_of_place(MessageKind kind) {
  throw Error(ErrorCode::CorruptData,
              fmt::format("a message of kind {} has no place here", static_cast<int>(kind)));
}

/// The messages that a client which only fetches parameters may send.
bool readers_may(MessageKind kind) {
  return kind == MessageKind::pull || kind == MessageKind::leave || kind == MessageKind::memory;
}

std::string name_of(const Join& join) {
  return fmt::format("the {} on {}", to_string(join.role), join.host);
}

}  // namespace

ServerSession::ServerSession(std::shared_ptr<Link> link, ShardStore& store, SessionOwner& owner)
    : link_(std::move(link)), store_(store), owner_(owner) {}

ServerSession::~ServerSession() {
  link_->finish();  // a refusal may still be on its way
}

void ServerSession::require_own(std::uint64_t lease) const {
  if (role_ == Role::worker && number_ && worker_of(lease) == *number_) return;
  throw Error(ErrorCode::CorruptData, "a gradient for a lease that is not this worker's", number());
}

std::span<std::byte> ServerSession::place(const net::FrameHeader& header) {
  const auto kind = static_cast<MessageKind>(header.operation);
  if (kind == MessageKind::push) {
    require_own(header.sequence);
    return store_.place(header.sequence, header.part, header.dtype,
                        {static_cast<comm::Scheme>(header.compression), header.compression_detail},
                        header.payload_bytes);
  }
  if (kind != MessageKind::state || role_ != Role::server || !admitted()) out_of_place(kind);
  return place_of_state(header);
}

std::span<std::byte> ServerSession::place_of_state(const net::FrameHeader& header) {
  const std::size_t so_far = state_.size();
  if (header.count > most_state_bytes(store_)) {
    throw Error(ErrorCode::CorruptData, "a server's state is larger than any could be");
  }
  if (header.payload_bytes > kMaxBodyBytes || so_far + header.payload_bytes > header.count) {
    throw Error(ErrorCode::CorruptData, "a piece of a server's state is longer than its rest");
  }
  state_.reserve(header.count);
  state_.resize(so_far + header.payload_bytes);
  return std::span(state_).subspan(so_far);
}

void ServerSession::on_message(const net::FrameHeader& header, std::span<const std::byte> body) {
  const auto kind = static_cast<MessageKind>(header.operation);
  if (kind == MessageKind::join) {
    on_join(body);
  } else if (kind == MessageKind::refused) {
    const auto why = decode_refused(body);
    if (role_ == Role::server && why.code() == kDeposed) owner_.on_deposed(why);
    throw why;
  } else if (kind == MessageKind::ask_leader) {
    net::FrameHeader answer;
    answer.count = static_cast<std::uint64_t>(owner_.leading());
    link_->send(MessageKind::leader, answer);
  } else if (!admitted()) {
    out_of_place(kind);
  } else if (role_ == Role::reader && !readers_may(kind)) {
    out_of_place(kind);
  } else if (role_ != Role::server) {
    on_worker_message(kind, header, body);
  } else {
    on_server_message(kind, header, body);
  }
}

void ServerSession::on_join(std::span<const std::byte> body) {
  if (admitted() || waiting_) out_of_place(MessageKind::join);
  join_ = decode_join(body);
  role_ = join_.role;
  enter();
}

void ServerSession::join_now() {
  if (!waiting_) return;
  try {
    enter();
  } catch (const Error& refusal) {
    link_->refuse(refusal);
  }
}

void ServerSession::enter() {
  number_ = owner_.admit(*this, join_);
  waiting_ = !number_;
  if (waiting_) return;
  join_.number = *number_;
  join_.facts.clear();
  link_->send(MessageKind::welcome, {}, encode(Welcome{*number_, store_.version()}));
  owner_.on_admitted(*this);
}

void ServerSession::on_worker_message(MessageKind kind, const net::FrameHeader& header,
                                      std::span<const std::byte> body) {
  switch (kind) {
    case MessageKind::push: store_.received(header.sequence, header.part); return;
    case MessageKind::push_end:
      require_own(header.sequence);
      owner_.on_staged(*this, header.sequence, store_.close_lease(header.sequence, header.count));
      return;
    case MessageKind::pull: on_pull(header); return;
    case MessageKind::done: owner_.on_done(*this, header.sequence, decode_done(body)); return;
    case MessageKind::said: owner_.on_said(*this, decode_said(body)); return;
    case MessageKind::leave: leaving_ = true; return;
    case MessageKind::memory: link_->on_memory(body); return;
    default: out_of_place(kind);
  }
}

void ServerSession::on_server_message(MessageKind kind, const net::FrameHeader& header,
                                      std::span<const std::byte> body) {
  switch (kind) {
    case MessageKind::apply: owner_.on_order(*this, header.sequence, decode_apply(body)); return;
    case MessageKind::caught_up: owner_.on_caught_up(*this, header.sequence); return;
    case MessageKind::staged: owner_.on_staged(*this, header.sequence, header.count != 0); return;
    case MessageKind::state:
      if (state_.size() == header.count) owner_.on_state(*this, std::exchange(state_, {}));
      return;
    case MessageKind::said: owner_.on_said(*this, decode_said(body)); return;
    default: out_of_place(kind);
  }
}

void ServerSession::on_pull(const net::FrameHeader& header) {
  if (pulls_.size() + (sending_ ? 1 : 0) >= kMostPulls) {
    throw Error(ErrorCode::CorruptData, "more pulls at once than a worker has memory for");
  }
  const auto scheme = static_cast<comm::Scheme>(header.compression);
  require_pull_scheme(scheme, store_.type());
  const auto steps_ahead = std::bit_cast<double>(header.count);
  if (!(steps_ahead >= 0 && steps_ahead <= kFurthestAhead)) {
    throw Error(ErrorCode::CorruptData, "parameters are wanted for another time", number());
  }
  const auto version = header.epoch < term_ ? 0 : header.sequence;
  pulls_.push_back({version, scheme, header.epoch, steps_ahead});
  serve_pull();
}

void ServerSession::begin_term(std::uint32_t term) {
  term_ = term;
  for (auto& pull : pulls_) {
    if (pull.term < term) pull.version = 0;
  }
  serve_pull();
}

void ServerSession::serve_pull() {
  if (sending_ || pulls_.empty() || pulls_.front().version > store_.version()) return;
  const auto scheme = pulls_.front().scheme;
  const auto steps_ahead = pulls_.front().steps_ahead;
  pulls_.pop_front();
  sending_ = true;
  net::FrameHeader header;
  header.sequence = store_.version();
  header.compression = static_cast<std::uint8_t>(scheme);
  if (scheme == comm::Scheme::none) {
    const auto values = store_.values(steps_ahead);
    for (const auto number : store_.pieces()) {
      header.part = number;
      link_->send_bulk(MessageKind::piece, header,
                       store_.bytes_of(store_.plan().pieces[number], *values), values);
    }
  } else {
    const auto encoded = store_.encoded(scheme, steps_ahead);
    for (std::size_t i = 0; i < store_.pieces().size(); ++i) {
      header.part = store_.pieces()[i];
      link_->send_bulk(MessageKind::piece, header, encoded->piece(i), encoded);
    }
  }
  link_->send_then(MessageKind::pulled, header, [this] {
    sending_ = false;
    serve_pull();
  });
}

void ServerSession::on_closed(const Error& why) {
  owner_.on_gone(*this, leaving_ ? std::string() : why.what());
}

void require_same_release(const Join& join, const std::string& own) {
  if (join.release == own) return;
  throw Error(
      ErrorCode::ProtocolMismatch,
      fmt::format("{} runs Bimetal {} and the servers {}; install the same version on every "
                  "machine",
                  name_of(join), join.release, own));
}

void require_same_facts(const Join& join, const std::vector<std::string>& own) {
  const auto count = std::min(join.facts.size(), own.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (join.facts[i] == own[i]) continue;
    throw Error(ErrorCode::CallMismatch,
                fmt::format("{} has '{}' where the servers have '{}': give every process the same "
                            "job, model and data",
                            name_of(join), join.facts[i], own[i]));
  }
  if (join.facts.size() == own.size()) return;
  throw Error(ErrorCode::CallMismatch,
              fmt::format("{} has another model: {} tensors and settings, the servers {}",
                          name_of(join), join.facts.size(), own.size()));
}

}  // namespace bimetal::parallel::server
