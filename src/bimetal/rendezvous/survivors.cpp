#include "bimetal/rendezvous/survivors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"

#ifdef _WIN32
#include <process.h>
#else
#include <unistd.h>
#endif

namespace bimetal::rendezvous {

std::string encode_member(const MemberRecord& member) {
  WireWriter out;
  out.u32(static_cast<std::uint32_t>(member.world_size));
  out.string(member.host);
  out.u64(member.process);
  out.u8(member.encrypted ? 1 : 0);
  out.u8(static_cast<std::uint8_t>(member.listening.size()));
  for (const auto& [host, port] : member.listening) {
    out.string(host);
    out.u16(port);
  }
  out.string(member.release);
  return std::string(reinterpret_cast<const char*>(out.bytes().data()), out.bytes().size());
}

MemberRecord decode_member(std::string_view bytes) {
  WireReader in(std::as_bytes(std::span(bytes.data(), bytes.size())));
  MemberRecord member;
  member.world_size = static_cast<int>(in.u32());
  member.host = in.string();
  member.process = in.u64();
  member.encrypted = in.u8() != 0;
  const int addresses = in.u8();
  for (int i = 0; i < addresses; ++i) {
    auto& [host, port] = member.listening.emplace_back();
    host = in.string();
    port = in.u16();
  }
  if (addresses == 0) throw Error(ErrorCode::CorruptData, "a rank's record has no address");
  if (in.remaining() > 0) member.release = in.string();
  in.expect_end();
  return member;
}

std::string describe(const MemberRecord& member) {
  return fmt::format("{} (process {})", member.host, member.process);
}

std::uint64_t own_process_id() {
#ifdef _WIN32
  return static_cast<std::uint64_t>(_getpid());
#else
  return static_cast<std::uint64_t>(getpid());
#endif
}

namespace {

constexpr std::chrono::milliseconds kLookForThemEvery{20};

/// Of the store: its deadline is not that of those who are waited for.
Deadline soon() {
  return Deadline::after(std::chrono::seconds(10));
}

std::string place_key(std::string_view prefix, int place) {
  return fmt::format("{}/place/{}", prefix, place);
}

std::string end_key(std::string_view prefix, int rank) {
  return fmt::format("{}/ended/{}", prefix, rank);
}

/// In the order in which they came; those who have taken a place and not said so yet are not there.
std::vector<int> arrived(Store& store, int size, std::string_view prefix) {
  std::vector<int> ranks;
  for (int place = 1; place < size; ++place) {
    const auto text = store.try_get(place_key(prefix, place), soon());
    if (!text) continue;
    int rank = -1;
    std::from_chars(text->data(), text->data() + text->size(), rank);
    if (rank < 0 || rank >= size || std::ranges::find(ranks, rank) != ranks.end()) {
      throw Error(ErrorCode::CorruptData, "what those who are left of the job say makes no sense");
    }
    ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> ended(Store& store, int size, std::string_view prefix) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (store.try_get(end_key(prefix, rank), soon())) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> others_than(const std::vector<int>& ranks, int size) {
  std::vector<int> others(static_cast<std::size_t>(size));
  std::iota(others.begin(), others.end(), 0);
  std::erase_if(others, [&](int rank) { return std::ranges::find(ranks, rank) != ranks.end(); });
  return others;
}

}  // namespace

Survivors find_survivors(Store& store, int rank, int size, std::string_view prefix,
                         Deadline deadline) {
  const auto place = store.add(fmt::format("{}/places", prefix), 1, soon());
  if (place >= size) {
    throw Error(ErrorCode::PeerLost,
                fmt::format("the others have taken rank {} for lost, and gone on without it", rank),
                rank);
  }
  store.set(place_key(prefix, static_cast<int>(place)), std::to_string(rank), soon());
  while (true) {
    auto here = arrived(store, size, prefix);
    if (static_cast<int>(here.size()) == size - 1) {
      std::ranges::sort(here);
      return {here, others_than(here, size).front()};
    }
    if (const auto gone = ended(store, size, prefix); gone.size() > 1) {
      throw Error(ErrorCode::PeerLost,
                  fmt::format("ranks {} are lost, and each shard has but one copy",
                              fmt::join(gone, " and ")),
                  gone.front());
    }
    if (deadline.expired()) {
      throw Error(ErrorCode::Timeout, fmt::format("of ranks {} no more than one may be missing",
                                                  fmt::join(others_than(here, size), " and ")));
    }
    std::this_thread::sleep_for(kLookForThemEvery);
  }
}

void note_end(Store& store, std::string_view prefix, int rank, Deadline deadline) {
  store.set(end_key(prefix, rank), "1", deadline);
}

}  // namespace bimetal::rendezvous
