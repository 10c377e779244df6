#include "bimetal/checkpoint/slices/shared_reader.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/slices/slice_file.h"
#include "bimetal/comm/exchange.h"

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

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kSent = "what rank 0 has sent of the checkpoint";

/// Tells a checkpoint from any other: the manifest, which has all checksums. Empty if this rank has
/// none of that name.
std::string mark_of(const fs::path& path) {
  try {
    return sha256_of_file(path / kStateFile);
  } catch (const Error&) {
    return {};
  }
}

/// The checkpoint that rank 0 has verified, if this rank sees it.
std::optional<OpenCheckpoint> open_same(const fs::path& path, const std::string& mark) {
  if (mark_of(path) != mark) return std::nullopt;
  try {
    return OpenCheckpoint(path, read_manifest(path));
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// One rank's request to another: text that the other checks before it believes any of it.
struct Request {
  char part = 'm';  ///< model, or the 'o'ptimizer; 'e': that was all
  std::string name;
  Slice wanted;
};

std::string request_text(const Request& request) {
  const Json json = {{"part", std::string(1, request.part)},
                     {"name", request.name},
                     {"offset", request.wanted.offset},
                     {"size", request.wanted.size}};
  return json.dump();
}

Request parse_request(const std::string& text, int rank) {
  try {
    const Json json = Json::parse(text);
    Request request;
    request.part = json.at("part").get<std::string>().at(0);
    json.at("name").get_to(request.name);
    json.at("offset").get_to(request.wanted.offset);
    json.at("size").get_to(request.wanted.size);
    return request;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("rank {} asks for no part of the checkpoint: {}", rank, error.what()));
  }
}

void send_text(comm::Group& group, int rank, const std::string& text) {
  RelayOut out(group, rank);
  out.write(std::as_bytes(std::span(text)));
  out.end();
}

std::string receive_text(comm::Group& group, int rank) {
  RelayIn in(group, rank);
  std::string text;
  std::vector<std::byte> piece;
  while (in.next(piece)) text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return text;
}

std::span<std::byte> bytes_in(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

SharedReader::SharedReader(comm::Group group, const std::optional<fs::path>& path)
    : group_(std::move(group)), seeing_(static_cast<std::size_t>(group_.size()), 1) {
  const auto told = [this](const std::function<std::string()>& action) {
    return comm::from_rank_0(group_, action, soon());
  };
  const auto place = told([&] { return path ? open(*path) : ""; });
  if (place.empty()) return;
  const auto mark = told([&] { return mark_of(place); });
  const auto state = told([&] { return state_text(here_->manifest().state); });
  const auto index = told([&] { return index_text(here_->index()); });
  loop_ = told([&] { return here_->manifest().loop; });
  if (group_.rank() != 0) {
    state_ = parse_state_text(state, kSent);
    index_ = parse_index_text(index, kSent);
    here_ = open_same(place, mark);
  }
  const std::vector<std::uint8_t> sees = {here_ ? std::uint8_t{1} : std::uint8_t{0}};
  group_.all_gather(comm::buffer(std::span(sees)), comm::buffer(std::span(seeing_)), soon()).wait();
}

/// On rank 0: where what `path` names lies.
std::string SharedReader::open(const fs::path& path) {
  here_ = find_checkpoint(path);
  state_ = here_->manifest().state;
  state_.error_feedback = here_->error_feedback();
  index_ = here_->index();
  return fs::absolute(here_->path()).string();
}

void SharedReader::on_rank_0(const std::function<void(OpenCheckpoint&)>& look) {
  if (found())
    comm::on_rank_0(
        group_, [&] { look(*here_); }, soon());
}

/// From the files, or by asking rank 0.
SharedReader::Read SharedReader::reader() {
  const auto of = [this](char part, const TensorIndex& index) {
    return [this, part, &index](const std::string& name, const Slice& wanted) {
      const auto& tensor = index.at(name);
      return here_ ? here_->read(name, tensor, wanted) : ask(part, name, tensor, wanted);
    };
  };
  return {.model = of('m', index_->model), .optimizer = of('o', index_->optimizer)};
}

torch::Tensor SharedReader::ask(char part, const std::string& name, const StoredTensor& tensor,
                                const Slice& wanted) {
  send_text(group_, 0, request_text({part, name, wanted}));
  auto values = torch::empty(wanted.size, torch::dtype(tensor.dtype));
  auto left = bytes_in(values);
  RelayIn in(group_, 0);
  std::vector<std::byte> piece;
  while (in.next(piece)) {
    if (piece.size() > left.size()) break;
    std::ranges::copy(piece, left.begin());
    left = left.subspan(piece.size());
    piece.clear();
  }
  if (left.empty() && piece.empty()) return values;
  throw Error(ErrorCode::CorruptData,
              fmt::format("{} is not {} bytes of '{}'", kSent, values.nbytes(), name));
}

void SharedReader::answer(int rank) {
  for (;;) {
    const auto request = parse_request(receive_text(group_, rank), rank);
    if (request.part == 'e') return;
    const auto& index = request.part == 'm' ? index_->model : index_->optimizer;
    const auto found = index.find(request.name);
    if (found == index.end() || !lies_in(request.wanted, found->second.shape)) {
      throw Error(
          ErrorCode::CorruptData,
          fmt::format("rank {} asks for '{}', of which there is no such part in the checkpoint",
                      rank, request.name));
    }
    const auto values = here_->read(request.name, found->second, request.wanted);
    RelayOut out(group_, rank);
    out.write(bytes_in(values));
    out.end();
  }
}

void SharedReader::each_takes(const std::function<void(const Read&)>& take) {
  take(reader());
  if (!here_) send_text(group_, 0, request_text({'e', {}, {}}));
  for (int rank = 1; rank < group_.size() && group_.rank() == 0; ++rank) {
    if (seeing_[static_cast<std::size_t>(rank)] == 0) answer(rank);
  }
  group_.barrier(soon()).wait();
}

}  // namespace bimetal::checkpoint
