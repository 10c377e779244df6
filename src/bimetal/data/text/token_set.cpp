#include "bimetal/data/text/token_set.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/wire.h"
#include "bimetal/data/digest.h"
#include "bimetal/data/gzip_file.h"

namespace bimetal::data {
namespace {

constexpr std::string_view kMagic = "BMTOKENS";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeader = 72;
constexpr std::size_t kDigestAt = 40;
constexpr std::size_t kEnd = 8;  ///< bytes of a document's end
constexpr std::int64_t kTokensAtATime = std::int64_t{1} << 20;
/// No file has more of anything: products of this and 8 do not overflow.
constexpr std::uint64_t kMost = std::uint64_t{1} << 56;

Error corrupt(const std::string& name, const std::string& found) {
  return Error(ErrorCode::CorruptData, fmt::format("'{}' is no sound token file: {}; write it anew "
                                                   "with bimetal data tokenize, or copy it again",
                                                   name, found));
}

/// Works with any byte order of the host. Compilers make one load of it.
template <std::size_t Width>
std::uint64_t number_at(const std::byte* bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < Width; ++i) value |= std::uint64_t(bytes[i]) << (8 * i);
  return value;
}

template <std::size_t Width>
void widen(std::span<const std::byte> tokens, std::span<std::int64_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<std::int64_t>(number_at<Width>(tokens.data() + i * Width));
  }
}

bool is_compressed(const std::filesystem::path& path) {
  return path.extension() == ".gz";
}

Documents documents_of(const std::string& name) {
  if (name == "join") return Documents::Join;
  if (name == "separate") return Documents::Separate;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("data.documents is \"join\" or \"separate\", not \"{}\"", name));
}

std::shared_ptr<const TokenFile> open_checked(const std::filesystem::path& path) {
  auto file = std::make_shared<const TokenFile>(path);
  file->check();
  return file;
}

}  // namespace

/// The file's contents, wherever they lie.
class TokenFile::Bytes {
 public:
  explicit Bytes(const std::filesystem::path& path) {
    if (is_compressed(path)) {
      unpacked_ = GzipFile(path).read_all();
    } else {
      mapped_.emplace(path);
    }
  }
  std::span<const std::byte> all() const {
    return mapped_ ? mapped_->bytes() : std::span<const std::byte>(unpacked_);
  }

 private:
  std::optional<MappedFile> mapped_;
  std::vector<std::byte> unpacked_;
};

TokenFile::TokenFile(const std::filesystem::path& path)
    : name_(path.string()), bytes_(std::make_unique<Bytes>(path)) {
  read_header();
}

TokenFile::~TokenFile() = default;

void TokenFile::read_header() {
  const auto all = bytes_->all();
  if (all.size() < kHeader) {
    throw corrupt(
        name_, fmt::format("it has {} bytes, and its header alone needs {}", all.size(), kHeader));
  }
  WireReader reader(all.first(kHeader));
  const auto magic = reader.raw(kMagic.size());
  if (!std::ranges::equal(magic, std::as_bytes(std::span(kMagic)))) {
    throw corrupt(name_, fmt::format("it does not begin with {}", kMagic));
  }
  if (const auto version = reader.u32(); version != kVersion) {
    throw corrupt(name_, fmt::format("its format is version {}, and this program reads version {}",
                                     version, kVersion));
  }
  const std::uint64_t width = reader.u32();
  const auto vocabulary = reader.u64(), size = reader.u64(), documents = reader.u64();
  if (width != 2 && width != 4) {
    throw corrupt(name_, fmt::format("its tokens have {} bytes, not 2 or 4", width));
  }
  if (vocabulary < 1 || vocabulary > std::uint64_t{1} << (8 * width)) {
    throw corrupt(name_, fmt::format("a vocabulary of {} does not fit tokens of {} bytes",
                                     vocabulary, width));
  }
  const auto needed = [&]() -> std::optional<std::uint64_t> {
    if (size > kMost || documents > kMost) return std::nullopt;
    return kHeader + (size * width + 7) / 8 * 8 + documents * kEnd;
  }();
  if (needed != all.size()) {
    throw corrupt(name_, fmt::format("{} tokens and {} documents need {} bytes, and it has {}",
                                     size, documents, needed.value_or(kMost), all.size()));
  }
  width_ = static_cast<std::int64_t>(width);
  vocabulary_ = static_cast<std::int64_t>(vocabulary);
  size_ = static_cast<std::int64_t>(size);
  documents_ = static_cast<std::int64_t>(documents);
  tokens_ = all.subspan(kHeader, size * width);
  ends_ = all.last(documents * kEnd);
}

std::int64_t TokenFile::document_end(std::int64_t document) const {
  return static_cast<std::int64_t>(
      number_at<kEnd>(ends_.data() + static_cast<std::size_t>(document) * kEnd));
}

void TokenFile::copy(std::int64_t begin, std::span<std::int64_t> to) const {
  const auto count = static_cast<std::int64_t>(to.size());
  if (begin < 0 || begin > size_ || count > size_ - begin) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("tokens {} … {} reach outside '{}', which has {}", begin,
                            begin + count - 1, name_, size_));
  }
  const auto from = tokens_.subspan(static_cast<std::size_t>(begin * width_));
  width_ == 2 ? widen<2>(from, to) : widen<4>(from, to);
}

std::string TokenFile::digest() const {
  Digest digest;
  std::ranges::copy(bytes_->all().subspan(kDigestAt, digest.size()), digest.begin());
  return hex(digest);
}

void TokenFile::check_documents() const {
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < documents_; ++i) {
    const auto end = document_end(i);
    if (end < before || end > size_) {
      throw corrupt(
          name_,
          fmt::format("document {} ends at token {}, the one before it at {}, the last token at {}",
                      i, end, before, size_));
    }
    before = end;
  }
  if (before != size_) {
    throw corrupt(name_, fmt::format("its documents end at token {} of {}", before, size_));
  }
}

void TokenFile::check() const {
  Hash hash;
  std::vector<std::int64_t> piece;
  std::optional<std::int64_t> outside;  // where the first such token is
  for (std::int64_t begin = 0; begin < size_; begin += kTokensAtATime) {  // each byte comes in once
    piece.resize(static_cast<std::size_t>(std::min(size_ - begin, kTokensAtATime)));
    copy(begin, piece);
    const auto bad = std::ranges::find_if(piece, [&](auto token) { return token >= vocabulary_; });
    if (!outside && bad != piece.end()) outside = begin + (bad - piece.begin());
    hash.add(tokens_.subspan(static_cast<std::size_t>(begin * width_),
                             piece.size() * static_cast<std::size_t>(width_)));
  }
  const auto all = bytes_->all();
  hash.add(all.subspan(kHeader + tokens_.size()));
  hash.add(all.first(kDigestAt));
  if (hex(hash.finish()) != digest()) {
    throw corrupt(name_, "its contents do not have the checksum that its header states");
  }
  if (outside) {
    std::int64_t token = 0;
    copy(*outside, {&token, 1});
    throw corrupt(name_, fmt::format("token {} is {}, outside its vocabulary of {}", *outside,
                                     token, vocabulary_));
  }
  check_documents();
}

TokenSet::TokenSet(std::shared_ptr<const TokenFile> file, std::int64_t block, Documents documents)
    : file_(std::move(file)), block_(block) {
  if (block < 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a block has at least 1 token, not {}", block));
  }
  if (documents == Documents::Join) {
    add_run(0, file_->size());
  } else {
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < file_->documents(); ++i) {
      add_run(std::exchange(begin, file_->document_end(i)), file_->document_end(i));
    }
  }
  if (samples_ == 0) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("'{}' has no two tokens after each other{}: there is nothing to learn from it; "
                    "tokenize a longer text",
                    file_->name(), documents == Documents::Separate ? " in any document" : ""));
  }
}

void TokenSet::add_run(std::int64_t begin, std::int64_t end) {
  const auto targets = end - begin - 1;
  if (targets < 1) return;
  runs_.push_back({samples_, begin, end});
  samples_ += (targets - 1) / block_ + 1;
}

TokenSet::Place TokenSet::place_of(std::int64_t sample) const {
  if (sample < 0 || sample >= samples_) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("sample {} is outside a set of {}", sample, samples_));
  }
  const auto after = std::ranges::upper_bound(runs_, sample, {}, &Run::first_sample);
  const auto& run = *std::prev(after);
  const auto begin = run.begin + (sample - run.first_sample) * block_;
  return {begin, std::min(block_, run.end - 1 - begin)};
}

task::Values TokenSet::batch(std::span<const std::int64_t> samples) const {
  const auto rows = static_cast<std::int64_t>(samples.size());
  auto inputs = torch::zeros({rows, block_}, torch::kInt64);
  auto targets = torch::full({rows, block_}, kNoTarget, torch::kInt64);
  auto* input = inputs.mutable_data_ptr<std::int64_t>();
  auto* target = targets.mutable_data_ptr<std::int64_t>();
  for (const auto sample : samples) {
    const auto place = place_of(sample);
    const auto count = static_cast<std::size_t>(place.targets);
    file_->copy(place.begin, {input, count});
    file_->copy(place.begin + 1, {target, count});
    input += block_;
    target += block_;
  }
  return {std::move(inputs), std::move(targets)};
}

TokenSets load_tokens(const DatasetFiles& files, std::int64_t block, const std::string& documents) {
  const auto how = documents_of(documents);
  const auto train = open_checked(files.files.at(0));
  TokenSets sets{std::make_shared<const TokenSet>(train, block, how), nullptr};
  if (files.files.size() < 2) return sets;
  const auto test = open_checked(files.files.at(1));
  if (train->vocabulary() != test->vocabulary()) {
    throw Error(
        ErrorCode::CorruptData,
        fmt::format(
            "'{}' has a vocabulary of {} and '{}' one of {}: write both with the same tokenizer",
            train->name(), train->vocabulary(), test->name(), test->vocabulary()));
  }
  if (test->size() > 0) sets.test = std::make_shared<const TokenSet>(test, block, how);
  return sets;
}

}  // namespace bimetal::data
