#include "bimetal/checkpoint/slices/slice_file.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <map>
#include <system_error>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"

namespace bimetal::checkpoint {
namespace {

/// The names of slices in their file.
std::vector<std::string> keys_of(const std::vector<OwnSlice>& slices) {
  std::map<std::string, int> seen;
  std::vector<std::string> keys;
  for (const auto& slice : slices) {
    const int before = seen[slice.name]++;
    keys.push_back(before == 0 ? slice.name : fmt::format("{}@{}", slice.name, before));
  }
  return keys;
}

}  // namespace

void Sha256::add(std::span<const std::byte> bytes) {
  crypto_hash_sha256_update(&state_, reinterpret_cast<const unsigned char*>(bytes.data()),
                            bytes.size());
}

std::string Sha256::finish() {
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest;
  crypto_hash_sha256_final(&state_, digest.data());
  std::string hex(2 * digest.size() + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), digest.data(), digest.size());
  hex.pop_back();  // the terminating zero
  return hex;
}

std::string sha256_of(std::string_view bytes) {
  Sha256 sum;
  sum.add(std::as_bytes(std::span(bytes)));
  return sum.finish();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  InputFile file(path);
  Sha256 sum;
  std::vector<std::byte> piece(1 << 20);
  while (const auto count = file.read(piece)) sum.add(std::span(piece).first(count));
  return sum.finish();
}

std::string slice_file_name(const char* what, int rank, int ranks) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", what, rank, ranks);
}

TensorIndex index_of(const std::vector<OwnSlice>& slices, const std::string& file) {
  const auto keys = keys_of(slices);
  TensorIndex index;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto& own = slices[i];
    auto& tensor = index[own.name];
    tensor.dtype = own.values.scalar_type();
    tensor.shape = own.shape;
    tensor.slices.push_back({file, keys[i], own.slice});
  }
  return index;
}

void encode_slices(const std::vector<OwnSlice>& slices, const WriteBytes& write,
                   const std::function<void()>& written) {
  const auto keys = keys_of(slices);
  std::vector<TensorEntry> entries;
  std::map<std::string, const OwnSlice*> by_key;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    entries.push_back({keys[i], slices[i].values.scalar_type(), slices[i].slice.size});
    by_key[keys[i]] = &slices[i];
  }
  const auto tensor_of = [&](const std::string& key) {
    written();  // the one before
    return by_key.at(key)->values;
  };
  encode_safetensors(std::move(entries), tensor_of, write);
  written();
}

SliceFile::SliceFile(const std::filesystem::path& path)
    : path_(path), file_(std::fopen(path.string().c_str(), "wbx")) {
  if (!file_) throw system_error("cannot write " + path_.string(), errno);
}

void SliceFile::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;  // its pointer may be null
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) {
    throw system_error("cannot write " + path_.string(), errno);
  }
  sum_.add(bytes);
  size_ += bytes.size();
}

FileRecord SliceFile::finish() {
  sync_file(file_.get(), path_);
  file_.reset();
  return {size_, sum_.finish()};
}

namespace {

namespace fs = std::filesystem;

std::uint64_t size_of_file(const fs::path& path) {
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) throw system_error("cannot read " + path.string(), error);
  return size;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : origin_(path.string()),
      file_(path),
      header_(read_header(
          size_of_file(path),
          [this](std::span<std::byte> out) {
            if (file_.read(out) != out.size()) refuse_safetensors(origin_, "it ends early");
          },
          origin_)) {
  for (std::size_t i = 0; i < header_.entries.size(); ++i) places_[header_.entries[i].name] = i;
}

const TensorEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) refuse_safetensors(origin_, fmt::format("it has no '{}'", name));
  return header_.entries[found->second];
}

void SafetensorsFile::read(const TensorEntry& entry, std::int64_t first, std::span<std::byte> out) {
  const auto begin =
      entry.begin + static_cast<std::uint64_t>(first) * c10::elementSize(entry.dtype);
  file_.seek(header_.data + begin);
  if (file_.read(out) != out.size()) refuse_safetensors(origin_, "it ends early");
  require_values(entry, out, origin_);
}

}  // namespace bimetal::checkpoint
