#include "bimetal/comm/shm/connect.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/shm/segment.h"

namespace bimetal::comm {

std::vector<std::byte> encode_offer(const Offer& offer) {
  WireWriter writer;
  writer.u8(static_cast<std::uint8_t>(offer.transport));
  writer.u8(offer.made ? 1 : 0);
  writer.u16(0);
  writer.u32(offer.island);
  writer.u64(offer.bytes);
  write_address(writer, offer.address);
  return std::move(writer).take();
}

Offer decode_offer(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  Offer offer;
  offer.transport = static_cast<Transport>(reader.u8());
  offer.made = reader.u8() == 1;
  reader.u16();
  offer.island = reader.u32();
  offer.bytes = reader.u64();
  offer.address = read_address(reader);
  reader.expect_end();
  return offer;
}

namespace {

void check_agreement(const std::vector<Offer>& offers, const std::vector<int>& world_ranks) {
  for (std::size_t r = 1; r < offers.size(); ++r) {
    if (offers[r].transport == offers[0].transport) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("rank {} asks for transport '{}', rank {} for '{}'; give all ranks the "
                            "same (BIMETAL_TRANSPORT)",
                            world_ranks[0], to_string(offers[0].transport), world_ranks[r],
                            to_string(offers[r].transport)));
  }
}

/// Once for all groups: the reason is the same.
net::SharedMemory make_segment(std::size_t bytes) {
  static std::atomic_flag told;
  try {
    return net::SharedMemory::create(bytes);
  } catch (const Error& error) {
    log(told.test_and_set() ? LogLevel::info : LogLevel::warning,
        "no shared memory on this rank, which exchanges by TCP then: {}", error.what());
    return {};
  }
}

// FNV-1a: names stand for themselves on one machine, chance collisions merely share memory.
std::uint32_t hash_of(const std::string& island) {
  if (island.empty()) return 0;
  std::uint32_t hash = 0x811c9dc5u;
  for (const char c : island) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return std::max(hash, 1u);
}

std::vector<Offer> exchange_offers(const Exchange& exchange, const Offer& own) {
  std::vector<Offer> offers;
  for (const auto& message : exchange(encode_offer(own))) offers.push_back(decode_offer(message));
  return offers;
}

// Every rank's segment as far as this one sees it. One of another size is laid out otherwise, by
// another release or for another processor.
std::vector<net::SharedMemory> open_all(const std::vector<Offer>& offers, const Offer& own) {
  std::vector<net::SharedMemory> segments(offers.size());
  for (std::size_t r = 0; r < offers.size() && own.made; ++r) {
    const Offer& offer = offers[r];
    if (!offer.made || offer.bytes != own.bytes || offer.island != own.island) continue;
    try {
      segments[r] = net::SharedMemory::open(offer.address, offer.bytes);
    } catch (const Error& error) {
      log(LogLevel::debug, "no memory in common with rank {}: {}", r, error.what());
    }
  }
  return segments;
}

// Which rank has opened which rank's segment.
std::vector<std::vector<bool>> exchange_rows(const Exchange& exchange,
                                             const std::vector<Offer>& offers,
                                             const std::vector<net::SharedMemory>& segments) {
  const auto size = offers.size();
  std::vector<std::vector<bool>> sees(size, std::vector<bool>(size));
  // If there is none, all know it already.
  if (std::ranges::none_of(offers, &Offer::made)) return sees;
  std::vector<std::byte> opened;
  for (const auto& segment : segments) opened.push_back(segment ? std::byte{1} : std::byte{0});
  const auto rows = exchange(opened);
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t other = 0; other < size; ++other) {
      sees[r][other] = rows[r][other] == std::byte{1};
    }
  }
  return sees;
}

void require_one_island(const Topology& topology, const std::vector<int>& world_ranks) {
  if (topology.one_island()) return;
  throw Error(
      ErrorCode::Unsupported,
      fmt::format("transport 'shm' was asked for, but ranks {} and {} have no memory in "
                  "common: they are on different hosts, in different containers, of "
                  "different users or sessions, or one of them had no memory left for it (its log "
                  "says so)",
                  world_ranks[topology.islands[0][0]], world_ranks[topology.islands[1][0]]));
}

}  // namespace

std::shared_ptr<const Arena> connect_arena(std::uint64_t number, int rank,
                                           const std::vector<int>& world_ranks, std::size_t bytes,
                                           const Exchange& exchange) {
  const std::size_t whole = Arena::segment_bytes(bytes);
  net::SharedMemory own = make_segment(whole);
  const Offer offer{.transport = Transport::shm,
                    .made = static_cast<bool>(own),
                    .bytes = whole,
                    .address = own.address()};
  const auto offers = exchange_offers(exchange, offer);
  for (std::size_t r = 1; r < offers.size(); ++r) {
    if (offers[r].bytes == offers[0].bytes) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("rank {} asks for {} bytes of memory, rank {} for {}", world_ranks[0],
                            offers[0].bytes - Arena::kOffset, world_ranks[r],
                            offers[r].bytes - Arena::kOffset));
  }
  auto segments = open_all(offers, offer);
  const auto sees = exchange_rows(exchange, offers, segments);
  own.forget_name();
  const auto sees_all = [](const std::vector<bool>& row) {
    return std::ranges::find(row, false) == row.end();
  };
  if (!std::ranges::all_of(sees, sees_all)) return nullptr;
  return std::make_shared<const Arena>(number, rank, std::move(segments));
}

SharedHost connect_shared_host(std::uint32_t group, int rank, const std::vector<int>& world_ranks,
                               const ShareWish& wish, const Exchange& exchange) {
  const auto size = world_ranks.size();
  const bool wanted =
      wish.transport != Transport::tcp && wish.transport != Transport::mpi && size <= kMaxTeam;
  constexpr auto kBytes = ShmTeam::segment_bytes();
  net::SharedMemory own = wanted ? make_segment(kBytes) : net::SharedMemory();
  const Offer offer{.transport = wish.transport,
                    .made = static_cast<bool>(own),
                    .island = hash_of(wish.island),
                    .bytes = kBytes,
                    .address = own.address()};
  const auto offers = exchange_offers(exchange, offer);
  check_agreement(offers, world_ranks);

  auto segments = open_all(offers, offer);
  const auto sees = exchange_rows(exchange, offers, segments);
  own.forget_name();

  SharedHost host{Topology::from(sees), nullptr};
  if (wish.transport == Transport::shm) require_one_island(host.topology, world_ranks);
  const auto& island = host.topology.island_of(rank);
  if (island.size() < 2) return host;
  std::vector<net::SharedMemory> members;
  std::vector<int> member_ranks;
  for (const int member : island) {
    members.push_back(std::move(segments[member]));
    member_ranks.push_back(world_ranks[member]);
  }
  const auto place = std::ranges::find(island, rank) - island.begin();
  host.team = std::make_unique<ShmTeam>(group, static_cast<int>(place), std::move(member_ranks),
                                        std::move(members));
  return host;
}

}  // namespace bimetal::comm
