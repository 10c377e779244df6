#include "bimetal/net/mpi/path.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace bimetal::net::mpi {
namespace {

// Enough that one message is on its way while another is being read. Untouched memory costs
// nothing.
constexpr int kSlots = 2;
// How far the sender may be ahead of the receiver, in messages: messages not yet received are in
// the library's own memory, which nobody else keeps account of. Every kSyncEvery-th message is sent
// synchronously; since messages are received in their order, its end tells of all before it.
constexpr std::uint64_t kWindow = 16;
constexpr std::uint64_t kSyncEvery = 8;

}  // namespace

Path::Path(MpiThread& mpi, int peer, int tag, std::string peer_name,
           std::shared_ptr<std::atomic<std::uint64_t>> bytes_sent)
    : mpi_(mpi),
      peer_(peer),
      tag_(tag),
      peer_name_(std::move(peer_name)),
      bytes_sent_(std::move(bytes_sent)) {}

void Path::start(FrameReceiver& receiver) {
  receiver_ = &receiver;
  if (unreported_) receiver_->on_lost(peer_, *std::exchange(unreported_, std::nullopt));
  listen();
}

void Path::send(const FrameHeader& header, std::span<const std::byte> payload, SendDone done) {
  if (peer_left_) {
    const Error error(
        ErrorCode::PeerLost,
        fmt::format("{} has left the job in good order, but something is still sent to it",
                    peer_name_),
        peer_);
    if (done) done(std::make_exception_ptr(error));
    return report(error);  // the path is about to end in good order, if it has not yet
  }
  if (state_ == State::ended) {
    if (done) done(refusal_);
    return;
  }
  queue_.push_back({header, payload, std::move(done)});
  queue_.back().header.payload_bytes = payload.size();
  queue_.back().header.sealed = false;
  flush();
}

void Path::resume() {
  paused_ = false;
  take_arrived();
}

void Path::leave(std::function<void()> finished) {
  quiet_ = true;
  receiver_ = nullptr;
  if (state_ == State::ended) return finished();
  finished_ = std::move(finished);
  if (incoming_) incoming_->thrown_away = true;
  if (state_ == State::open) {
    state_ = State::leaving;
    say_goodbye();
  }
  listen();
  resume();
}

void Path::drop() {
  mpi_.give_up_order();
  lose(Error(ErrorCode::PeerLost,
             fmt::format("this side has given {} up and ended the path", peer_name_), peer_));
}

void Path::abandon(const Error& reason) {
  quiet_ = true;
  receiver_ = nullptr;
  end(reason);
}

void Path::flush() {
  while (state_ != State::ended && !queue_.empty() && messages_sent_ - messages_taken_ < kWindow) {
    send_chunk(queue_.front());
  }
}

/// The frame at the front of the queue, or a piece of it.
void Path::send_chunk(Outgoing& frame) {
  const std::size_t head = frame.begun ? 0 : kFrameHeaderBytes;
  const auto piece =
      frame.payload.subspan(frame.sent, std::min(kChunkBytes, frame.payload.size() - frame.sent));
  Memory memory(new std::byte[head + piece.size()]);
  if (!frame.begun) {
    std::ranges::copy(encode_header(frame.header, outgoing_seal_), memory.get());
  }
  std::ranges::copy(piece, memory.get() + head);
  frame.begun = true;
  frame.sent += piece.size();
  SendDone done;
  const bool last = frame.header.kind == FrameKind::Goodbye;
  const bool whole = frame.sent == frame.payload.size();
  if (whole) {
    done = std::move(frame.done);
    queue_.pop_front();
  }
  send_message(std::move(memory), head + piece.size(), last);
  if (whole && done) done(state_ == State::ended ? refusal_ : nullptr);
}

void Path::send_message(Memory memory, std::size_t bytes, bool last) {
  const auto number = messages_sent_++;
  // A goodbye may find nobody who still receives.
  const bool synchronous = !last && number % kSyncEvery == kSyncEvery - 1;
  const std::span<const std::byte> message(memory.get(), bytes);
  try {
    const Handle request = synchronous ? mpi_.library().send_synchronously(message, address())
                                       : mpi_.library().send(message, address());
    ++under_way_;
    *bytes_sent_ += bytes;
    mpi_.watch(request, [self = shared_from_this(), memory = std::move(memory), number,
                         synchronous](const Completion& completion) {
      self->on_sent(number, synchronous, completion);
    });
  } catch (const Error& error) {
    lose(fmt::format("does not take data any more: {}", error.what()));
  }
}

void Path::on_sent(std::uint64_t number, bool synchronous, const Completion& completion) {
  --under_way_;
  if (completion.error) {
    return lose(fmt::format("does not take data any more: {}", *completion.error));
  }
  if (synchronous) messages_taken_ = std::max(messages_taken_, number + 1);
  flush();
  end_if_over();
}

void Path::listen() {
  if (!slots_.empty()) return;
  for (int i = 0; i < kSlots && receives(); ++i) {
    slots_.push_back(std::make_shared<Slot>());
    slots_.back()->memory.reset(new std::byte[kFrameHeaderBytes + kChunkBytes]);
    post(slots_.back());
  }
}

void Path::post(const std::shared_ptr<Slot>& slot) {
  try {
    slot->request =
        mpi_.library().receive({slot->memory.get(), kFrameHeaderBytes + kChunkBytes}, address());
    slot->posted = true;
    mpi_.watch(slot->request, [self = shared_from_this(), slot](const Completion& completion) {
      self->on_arrival(*slot, completion);
    });
  } catch (const Error& error) {
    lose(fmt::format("cannot be received from any more: {}", error.what()));
  }
}

void Path::on_arrival(Slot& slot, const Completion& completion) {
  slot.posted = false;
  if (!receives()) return;
  if (completion.error) return lose(fmt::format("is gone: {}", *completion.error));
  slot.arrived = true;
  slot.bytes = completion.bytes;
  take_arrived();
}

/// In the order of sending: a short message may be here before a long one in front of it.
void Path::take_arrived() {
  while (receives() && !paused_ && !slots_.empty() && slots_.front()->arrived) {
    const auto slot = slots_.front();
    try {
      if (!take({slot->memory.get(), slot->bytes})) return;
    } catch (const Error& error) {
      mpi_.give_up_order();
      return lose(Error(error.code(), fmt::format("{} sent bad data: {}", peer_name_, error.what()),
                        peer_));
    }
    if (!receives()) return;
    slots_.pop_front();
    slots_.push_back(slot);
    slot->arrived = false;
    post(slot);
  }
}

/// False if the receiver has no room yet: the message stays where it is.
bool Path::take(std::span<const std::byte> message) {
  if (message.empty()) {
    lose("ended the path without a goodbye; its process has probably ended");
  } else if (incoming_) {
    fill(message);
  } else {
    return begin_frame(message);
  }
  return true;
}

bool Path::begin_frame(std::span<const std::byte> message) {
  if (message.size() < kFrameHeaderBytes) {
    throw Error(ErrorCode::CorruptData, "a message too short for a frame's header");
  }
  Seal seal = incoming_seal_;  // a frame for which there is no room yet is looked at again
  const auto header = decode_header(message.first<kFrameHeaderBytes>(), seal);
  Incoming frame{header, {}, state_ == State::leaving || receiver_ == nullptr};
  if (header.kind == FrameKind::Goodbye || header.kind == FrameKind::Heartbeat) {
    if (header.payload_bytes != 0) {
      throw Error(ErrorCode::CorruptData, "a frame without payload announces one");
    }
    incoming_seal_ = seal;
    if (header.kind == FrameKind::Goodbye) on_goodbye();
    return true;
  }
  if (!frame.thrown_away) {
    const auto placement = receiver_->on_header(peer_, header);
    paused_ = placement.pause;
    if (paused_) return false;
    if (placement.bytes.size() != header.payload_bytes) {
      throw Error(ErrorCode::Internal, "the receiver's place does not fit the payload");
    }
    frame.place = placement.bytes;
  }
  incoming_seal_ = seal;
  incoming_ = frame;
  fill(message.subspan(kFrameHeaderBytes));
  return true;
}

void Path::fill(std::span<const std::byte> bytes) {
  if (bytes.size() > incoming_->header.payload_bytes - incoming_->arrived) {
    throw Error(ErrorCode::CorruptData, "more payload than the frame has announced");
  }
  if (!incoming_->thrown_away) {
    std::ranges::copy(bytes, incoming_->place.begin() + incoming_->arrived);
  }
  incoming_->arrived += bytes.size();
  if (incoming_->arrived < incoming_->header.payload_bytes) return;
  const Incoming frame = *std::exchange(incoming_, std::nullopt);
  if (!frame.thrown_away) receiver_->on_payload(peer_, frame.header);
}

void Path::on_goodbye() {
  peer_left_ = true;
  if (state_ == State::open) {
    state_ = State::departed;
    say_goodbye();
  }
  end_if_over();
}

void Path::say_goodbye() {
  queue_.push_back({{.kind = FrameKind::Goodbye}, {}, [this](const std::exception_ptr& error) {
                      goodbye_sent_ = !error;
                    }});
  flush();
}

void Path::end_if_over() {
  if (peer_left_ && goodbye_sent_ && under_way_ == 0) {
    end(Error(ErrorCode::Aborted, "the path was closed in good order"));
  }
}

void Path::lose(const std::string& how) {
  mpi_.give_up_order();
  lose(Error(ErrorCode::PeerLost, fmt::format("{} {}", peer_name_, how), peer_));
}

void Path::lose(const Error& error) {
  end(error);
  report(error);
}

void Path::report(const Error& error) {
  if (std::exchange(quiet_, true)) return;
  if (receiver_ != nullptr) {
    receiver_->on_lost(peer_, error);
  } else {
    unreported_ = error;
  }
}

void Path::end(const Error& reason) {
  if (state_ == State::ended) return;
  state_ = State::ended;
  refusal_ = std::make_exception_ptr(reason);
  if (!goodbye_sent_ || under_way_ > 0) break_off();
  for (const auto& slot : slots_) {
    if (slot->posted) mpi_.library().cancel(slot->request);
  }
  incoming_.reset();
  for (auto& frame : std::exchange(queue_, {})) {
    if (frame.done) frame.done(refusal_);
  }
  if (finished_) std::exchange(finished_, nullptr)();
}

/// An empty message, by which the peer learns that nothing more comes.
void Path::break_off() {
  mpi_.give_up_order();
  try {
    mpi_.watch(mpi_.library().send({}, address()), [](const Completion&) {});
  } catch (const Error&) {
    // It cannot be told: it will find out by its deadlines.
  }
}

}  // namespace bimetal::net::mpi
