#include "bimetal/checkpoint/slices/relay.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "bimetal/checkpoint/shared_checkpoint.h"

namespace bimetal::checkpoint {
namespace {

constexpr std::size_t kPieceBytes = 4u << 20;
constexpr std::uint64_t kTag = 0x51ce5;  // both ways: sender and receiver differ
constexpr std::int64_t kMore = 1, kNoMore = 0;

Deadline soon() {
  return Deadline::after(kFileTimeout);
}

void send_number(comm::Group& group, int peer, std::int64_t number) {
  const std::vector<std::int64_t> numbers = {number};
  group.send(comm::buffer(std::span(numbers)), peer, kTag, soon()).wait();
}

std::int64_t receive_number(comm::Group& group, int peer) {
  std::vector<std::int64_t> numbers(1);
  group.recv(comm::buffer(std::span(numbers)), peer, kTag, soon()).wait();
  return numbers.front();
}

}  // namespace

RelayOut::RelayOut(comm::Group group, int peer) : group_(std::move(group)), peer_(peer) {}

void RelayOut::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto next = bytes.first(std::min(bytes.size(), kPieceBytes - piece_.size()));
    piece_.insert(piece_.end(), next.begin(), next.end());
    bytes = bytes.subspan(next.size());
    if (piece_.size() == kPieceBytes) send_piece();
  }
}

void RelayOut::send_piece() {
  if (receive_number(group_, peer_) != kMore) throw RelayRefused();
  send_number(group_, peer_, static_cast<std::int64_t>(piece_.size()));
  if (piece_.empty()) return;
  group_.send({piece_.data(), piece_.size(), comm::DType::uint8}, peer_, kTag, soon()).wait();
  piece_.clear();
}

void RelayOut::end() {
  if (!piece_.empty()) send_piece();
  send_piece();  // an empty one is the last
}

RelayIn::RelayIn(comm::Group group, int peer) : group_(std::move(group)), peer_(peer) {}

bool RelayIn::next(std::vector<std::byte>& piece) {
  send_number(group_, peer_, kMore);
  const auto size = receive_number(group_, peer_);
  piece.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(size, 0, kPieceBytes)));
  if (piece.empty()) return false;
  group_.recv({piece.data(), piece.size(), comm::DType::uint8}, peer_, kTag, soon()).wait();
  return true;
}

void RelayIn::refuse() {
  send_number(group_, peer_, kNoMore);
}

}  // namespace bimetal::checkpoint
