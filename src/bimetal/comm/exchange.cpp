#include "bimetal/comm/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <numeric>
#include <span>
#include <utility>

#include "bimetal/base/error.h"

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

Group group_of_its_own(Group group) {
  std::vector<int> everyone(static_cast<std::size_t>(group.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  return group.subgroup(everyone);
}

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

std::string broadcast_text(Group group, std::string_view text, int root, Deadline deadline) {
  const auto bytes = std::as_bytes(std::span(text));
  const auto sent = broadcast_bytes(std::move(group), {bytes.begin(), bytes.end()}, root, deadline);
  return {reinterpret_cast<const char*>(sent.data()), sent.size()};
}

std::size_t checked_size(std::int64_t size, std::int64_t most, int rank) {
  if (size >= 0 && size <= most) return static_cast<std::size_t>(size);
  throw Error(ErrorCode::CorruptData,
              fmt::format("rank {} announces {} bytes, of {} at most", rank, size, most), rank);
}

std::size_t longest_said(std::span<const std::int64_t> sizes) {
  std::size_t longest = 0;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    longest = std::max(longest, checked_size(sizes[rank], kMostSaid, static_cast<int>(rank)));
  }
  return longest;
}

namespace {

constexpr char kDone = 'd';
constexpr char kFailed = 'f';  // and the error's code, as a letter

std::string failure_text(const Error& error) {
  return std::string{kFailed, static_cast<char>('a' + static_cast<int>(error.code()))} +
         error.what();
}

Error parse_failure(const std::string& text) {
  const int code = text.size() > 1 ? text[1] - 'a' : -1;
  if (text.empty() || text[0] != kFailed || code < 0 ||
      code > static_cast<int>(ErrorCode::Internal)) {
    return {ErrorCode::CorruptData, "what rank 0 has sent makes no sense", 0};
  }
  return {static_cast<ErrorCode>(code), text.substr(2), 0};
}

/// Whoever fails may end the group next, which must not overtake what the others are being told.
void let_all_hear(Group group, Deadline deadline) {
  try {
    group.barrier(deadline).wait();
  } catch (const Error&) {  // the failure at hand is the one to tell
  }
}

}  // namespace

std::string from_rank_0(Group group, const std::function<std::string()>& action,
                        Deadline deadline) {
  std::string text;
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      text = kDone + action();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      text = failure_text(to_error(error));
    }
  }
  text = broadcast_text(group, text, 0, deadline);
  if (!text.empty() && text[0] == kDone) return text.substr(1);
  // Only of what rank 0 knows to be a failure does it wait for the others, too.
  if (!text.empty() && text[0] == kFailed) let_all_hear(std::move(group), deadline);
  if (failure) std::rethrow_exception(failure);
  throw parse_failure(text);
}

void on_rank_0(Group group, const std::function<void()>& action, Deadline deadline) {
  const auto with_no_words = [&] {
    action();
    return std::string();
  };
  from_rank_0(std::move(group), with_no_words, deadline);
}

}  // namespace bimetal::comm
