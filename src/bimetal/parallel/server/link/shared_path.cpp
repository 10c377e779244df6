#include "bimetal/parallel/server/link/shared_path.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/fabric.h"

namespace bimetal::parallel::server {
namespace {

// The first page is the segment's own.
constexpr std::size_t kRings = 4096;
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

std::span<std::byte> ring_of(const net::SharedMemory& segment, std::size_t number) {
  const auto rings = segment.bytes().subspan(kRings);
  return rings.subspan(number * (rings.size() / 2), rings.size() / 2);
}

}  // namespace

/// The beginning of a payload, which must not go across the ring's end.
std::uint64_t SharedRing::begin_of(std::uint64_t end, std::size_t bytes) const noexcept {
  const auto place = end % memory_.size();
  return place + bytes <= memory_.size() ? end : end + memory_.size() - place;
}

bool SharedRing::put(std::span<const std::byte> payload) {
  const auto begin = begin_of(end_, payload.size());
  if (begin + payload.size() - taken_ > memory_.size()) return false;
  std::ranges::copy(payload, memory_.data() + begin % memory_.size());  // it may be empty
  // The frame that announces it goes through the kernel, which orders more than this.
  std::atomic_thread_fence(std::memory_order_release);
  end_ = begin + payload.size();
  return true;
}

void SharedRing::on_taken(std::uint64_t taken) {
  if (taken < taken_ || taken > end_) {
    throw Error(ErrorCode::CorruptData, "more was taken out of shared memory than lay in it");
  }
  taken_ = taken;
}

void SharedRing::take(std::span<std::byte> into) {
  if (!fits(into.size())) {
    throw Error(ErrorCode::CorruptData, "a message in shared memory is longer than fits there");
  }
  const auto begin = begin_of(end_, into.size());
  std::atomic_thread_fence(std::memory_order_acquire);
  std::copy_n(memory_.data() + begin % memory_.size(), into.size(), into.data());
  end_ = begin + into.size();
}

std::optional<std::uint64_t> SharedRing::news() {
  if (end_ - taken_ < memory_.size() / 4) return std::nullopt;
  taken_ = end_;
  return taken_;
}

SharedPath::SharedPath(net::SharedMemory segment, bool client)
    : segment_(std::move(segment)),
      client_(client),
      to_server_(ring_of(segment_, 0)),
      to_client_(ring_of(segment_, 1)) {}

std::unique_ptr<SharedPath> SharedPath::make(std::size_t ring_bytes) {
  return std::unique_ptr<SharedPath>(
      new SharedPath(net::SharedMemory::create(kRings + 2 * ring_bytes), true));
}

std::unique_ptr<SharedPath> SharedPath::open(std::span<const std::byte> offer) {
  WireReader in(offer);
  net::SegmentAddress address;
  const auto bytes = in.u64();
  address.process = in.u64();
  address.handle = in.u64();
  address.name = in.string();
  const auto island = in.string();
  std::ranges::copy(in.raw(address.nonce.size()), address.nonce.begin());
  in.expect_end();
  if (bytes <= kRings || bytes > kMostBytes || bytes % 2 != 0) {
    throw Error(ErrorCode::CorruptData, "an offer of shared memory of an impossible size");
  }
  if (island != comm::island_for({})) {
    throw Error(ErrorCode::Unsupported, "BIMETAL_ISLAND is another one there");
  }
  return std::unique_ptr<SharedPath>(
      new SharedPath(net::SharedMemory::open(address, static_cast<std::size_t>(bytes)), false));
}

Body SharedPath::offer() const {
  const auto& address = segment_.address();
  WireWriter out;
  out.u64(segment_.bytes().size());
  out.u64(address.process);
  out.u64(address.handle);
  out.string(address.name);
  out.string(comm::island_for({}));
  out.raw(address.nonce);
  return std::move(out).take();
}

}  // namespace bimetal::parallel::server
