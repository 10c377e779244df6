#include "bimetal/comm/exchange.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/exchange_sizes.h"

namespace bimetal::comm {
namespace {

Bytes room_for(std::size_t bytes) try { return Bytes(bytes); } catch (const std::exception&) {
  throw Error(ErrorCode::OutOfMemory,
              fmt::format("there is no memory for {} bytes from other ranks", bytes));
}

Buffer as_buffer(std::span<std::byte> bytes) {
  return {bytes.data(), bytes.size(), DType::uint8};
}

}  // namespace

std::vector<Bytes> all_gather_bytes(Group group, std::span<const std::byte> mine,
                                    Deadline deadline) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::vector<std::int64_t> my_size = {static_cast<std::int64_t>(mine.size())};
  std::vector<std::int64_t> sizes(ranks);
  group.all_gather(buffer(std::span(my_size)), buffer(std::span(sizes)), deadline).wait();
  const auto longest = longest_said(sizes);
  Bytes padded(mine.begin(), mine.end());
  padded.resize(longest);
  Bytes all = room_for(longest * ranks);
  group.all_gather(as_buffer(padded), as_buffer(all), deadline).wait();

  std::vector<Bytes> result;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto bytes =
        std::span(all).subspan(rank * longest, static_cast<std::size_t>(sizes[rank]));
    result.emplace_back(bytes.begin(), bytes.end());
  }
  return result;
}

std::vector<std::string> all_gather_text(Group group, const std::string& mine, Deadline deadline) {
  std::vector<std::string> all;
  for (const auto& bytes :
       all_gather_bytes(std::move(group), std::as_bytes(std::span(mine)), deadline)) {
    all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return all;
}

Bytes broadcast_bytes(Group group, Bytes bytes, int root, Deadline deadline) {
  std::vector<std::int64_t> size = {static_cast<std::int64_t>(bytes.size())};
  group.broadcast(buffer(std::span(size)), root, deadline).wait();
  const auto sent = checked_size(size[0], kMostSent, root);
  if (bytes.size() != sent) bytes = room_for(sent);
  group.broadcast(as_buffer(bytes), root, deadline).wait();
  return bytes;
}

}  // namespace bimetal::comm
