#include "bimetal/data/transfer/data_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "bimetal/base/wire_fields.h"

namespace bimetal::data {
namespace {

constexpr std::size_t kShownDigits = 16;  // enough to tell two copies apart by eye

std::string describe_file(const FileFact& file) {
  return fmt::format("{} bytes with checksum {} ({})", file.content->size,
                     hex(file.content->digest, kShownDigits), file.path);
}

}  // namespace

template <typename Wire>
void fields(Wire& wire, Content& content) {
  wire(content.size);
  wire.raw(content.digest);
}

template <typename Wire>
void fields(Wire& wire, FileFact& file) {
  wire(file.path, file.identity, file.stored_size, file.content);
}

template <typename Wire>
void fields(Wire& wire, Copy& copy) {
  wire(copy.host, copy.missing);
  wire.within(ErrorCode{}, copy.code, ErrorCode::Internal);
  wire(copy.files);
}

comm::Bytes encode_copy(const Copy& copy) {
  return write_fields(copy);
}

Copy decode_copy(const comm::Bytes& bytes) {
  return read_fields<Copy>(bytes);
}

std::string rank_on_host(int rank, std::span<const Copy> copies) {
  return fmt::format("rank {} on {}", rank, copies[static_cast<std::size_t>(rank)].host);
}

int reference_rank(std::span<const Copy> copies) {
  const auto first = std::ranges::find_if(copies, &Copy::there);
  if (first == copies.end()) throw Error(copies.front().code, copies.front().missing);
  return static_cast<int>(first - copies.begin());
}

std::vector<std::size_t> files_to_read(std::span<const Copy> copies, int rank) {
  const auto seen_before = [&](const FileFact& file) {
    if (file.identity.empty()) return false;
    const auto same = [&](const FileFact& other) { return other.identity == file.identity; };
    return std::ranges::any_of(copies.first(static_cast<std::size_t>(rank)), [&](const Copy& copy) {
      return std::ranges::any_of(copy.files, same);
    });
  };
  std::vector<std::size_t> mine;
  const auto& files = copies[static_cast<std::size_t>(rank)].files;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!files[i].content && !seen_before(files[i])) mine.push_back(i);
  }
  return mine;
}

void share_contents(std::vector<Copy>& copies) {
  std::map<std::string, Content> known;
  for (const auto& copy : copies) {
    for (const auto& file : copy.files) {
      if (file.content && !file.identity.empty()) known.emplace(file.identity, *file.content);
    }
  }
  for (auto& copy : copies) {
    for (auto& file : copy.files) {
      const auto found = known.find(file.identity);
      if (!file.content && found != known.end()) file.content = found->second;
    }
  }
}

void require_equal_copies(std::span<const Copy> copies, const std::string& dataset) {
  const auto reference = reference_rank(copies);
  const auto& expected = copies[static_cast<std::size_t>(reference)].files;
  for (std::size_t rank = 0; rank < copies.size(); ++rank) {
    const auto& found = copies[rank].files;
    if (!copies[rank].there()) continue;
    if (found.size() != expected.size()) {
      throw Error(ErrorCode::CallMismatch,
                  fmt::format("{} has {} files of the data set '{}', and {} has {}. Copy what is "
                              "missing to the other machine",
                              rank_on_host(static_cast<int>(rank), copies), found.size(), dataset,
                              rank_on_host(reference, copies), expected.size()),
                  static_cast<int>(rank));
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i].content == expected[i].content) continue;
      throw Error(
          ErrorCode::CallMismatch,
          fmt::format(
              "{0} has another copy of the data set '{1}' than {2}: a file is {3} on rank {4}, but "
              "{5} on rank {6}. Copy the right files to the other machine; or move the wrong ones "
              "away there, and it is sent the right ones ([data] send = true)",
              rank_on_host(static_cast<int>(rank), copies), dataset,
              rank_on_host(reference, copies), describe_file(expected.at(i)), reference,
              describe_file(found[i]), rank),
          static_cast<int>(rank));
    }
  }
}

Digest digest_of_copy(const Copy& copy) {
  FieldWriter writer;
  for (const auto& file : copy.files) writer(file.content);
  return digest_of(std::move(writer).take());
}

std::uint64_t stored_bytes(const Copy& copy) {
  const auto add = [](std::uint64_t sum, const FileFact& file) { return sum + file.stored_size; };
  return std::accumulate(copy.files.begin(), copy.files.end(), std::uint64_t{0}, add);
}

}  // namespace bimetal::data
