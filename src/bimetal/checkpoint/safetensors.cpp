#include "bimetal/checkpoint/safetensors.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/wire.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/open_checkpoint.h"

static_assert(std::endian::native == std::endian::little,
              "tensor data is copied as it lies in memory, and the format is little-endian");

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;

std::vector<TensorEntry> entries_of(const TensorMap& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    require_storable(name, tensor);
    entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  }
  return entries;
}

std::uint64_t data_bytes(const TensorEntry& entry) {
  return c10::elementSize(entry.dtype) *
         static_cast<std::uint64_t>(c10::multiply_integers(entry.shape));
}

/// Largest elements first, so that each tensor is aligned to its own element size.
void lay_out(std::vector<TensorEntry>& entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  std::uint64_t offset = 0;
  for (TensorEntry& entry : entries) {
    entry.begin = offset;
    offset = entry.end = offset + data_bytes(entry);
  }
}

/// Bytes whose number is known beforehand, so that no length in them is believed blindly.
class Reader {
 public:
  /// Gives the next bytes; fewer than asked for at the end alone.
  using Fill = std::function<std::size_t(std::span<std::byte>)>;

  Reader(std::string origin, std::uint64_t size, Fill fill)
      : origin_(std::move(origin)), left_(size), fill_(std::move(fill)) {}

  const std::string& origin() const { return origin_; }
  std::uint64_t left() const { return left_; }

  void read(std::span<std::byte> out) {
    if (out.size() > left_ || fill_(out) != out.size())
      refuse_safetensors(origin_, "it ends early");
    left_ -= out.size();
  }

 private:
  const std::string origin_;
  std::uint64_t left_;
  const Fill fill_;
};

torch::Tensor read_tensor(Reader& reader, const TensorEntry& entry) {
  auto tensor = torch::empty(entry.shape, torch::TensorOptions().dtype(entry.dtype));
  const std::span bytes(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes());
  reader.read(bytes);
  require_values(entry, bytes, reader.origin());
  return tensor;
}

TensorMap read_tensors(Reader reader) {
  TensorMap tensors;
  const auto header = read_header(
      reader.left(), [&](std::span<std::byte> out) { reader.read(out); }, reader.origin());
  for (const TensorEntry& entry : header.entries) {
    tensors.emplace(entry.name, read_tensor(reader, entry));
  }
  return tensors;
}

}  // namespace

void encode_safetensors(std::vector<TensorEntry> entries, const TensorOf& tensor_of,
                        const WriteBytes& write) {
  lay_out(entries);
  const std::string header = header_text(entries);
  WireWriter length;
  length.u64(header.size());
  write(length.bytes());
  write(std::as_bytes(std::span(header)));
  for (const TensorEntry& entry : entries) {
    const auto tensor = tensor_of(entry.name).detach().cpu().contiguous();
    write(std::span(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()));
  }
}

void require_storable(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != torch::kStrided) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("tensor '{}' is undefined or sparse", name));
  }
  if (format_name(tensor.scalar_type()).empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("tensor '{}' is of type {}, which safetensors files do not know", name,
                            c10::toString(tensor.scalar_type())));
  }
}

void encode_safetensors(const TensorMap& tensors, const WriteBytes& write) {
  encode_safetensors(
      entries_of(tensors), [&](const std::string& name) { return tensors.at(name); }, write);
}

void write_safetensors(const fs::path& path, std::vector<TensorEntry> entries,
                       const TensorOf& tensor_of) {
  AtomicFile file(path);
  encode_safetensors(std::move(entries), tensor_of,
                     [&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.commit();
}

void write_safetensors(const fs::path& path, const TensorMap& tensors) {
  AtomicFile file(path);
  encode_safetensors(tensors, [&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.commit();
}

TensorMap read_safetensors(const fs::path& path) {
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) throw system_error("cannot read " + path.string(), error);
  InputFile file(path);
  return read_tensors(
      {path.string(), size, [&](std::span<std::byte> out) { return file.read(out); }});
}

std::vector<std::byte> encode_safetensors(const TensorMap& tensors) {
  std::vector<std::byte> all;
  encode_safetensors(tensors, [&](std::span<const std::byte> bytes) {
    all.insert(all.end(), bytes.begin(), bytes.end());
  });
  return all;
}

TensorMap decode_safetensors(std::span<const std::byte> bytes, const std::string& origin) {
  auto rest = bytes;
  return read_tensors({origin, bytes.size(), [&](std::span<std::byte> out) {
                         const auto next = rest.first(std::min(out.size(), rest.size()));
                         std::ranges::copy(next, out.begin());
                         rest = rest.subspan(next.size());
                         return next.size();
                       }});
}

// A checkpoint's tensors put together, one after the other.

namespace {

void write_whole(OpenCheckpoint& checkpoint, const TensorIndex& index, const fs::path& file) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : index) {
    TensorEntry entry;
    entry.name = name;
    entry.dtype = tensor.dtype;
    entry.shape = tensor.shape;
    entries.push_back(std::move(entry));
  }
  write_safetensors(file, std::move(entries),
                    [&](const std::string& name) { return checkpoint.read(name, index.at(name)); });
}

}  // namespace

SavedWeights write_saved_weights(const fs::path& path, const fs::path& file) {
  auto checkpoint = find_checkpoint(path);
  write_whole(checkpoint, checkpoint.index().model, file);
  return {checkpoint.path(), checkpoint.index().model.size()};
}

fs::path consolidate_checkpoint(const fs::path& path, const fs::path& folder) {
  auto checkpoint = find_checkpoint(path);
  TemporaryPath fresh(place_of_new_folder(folder), TemporaryPath::Kind::folder);
  write_whole(checkpoint, checkpoint.index().model, fresh.path() / kModelFile);
  write_whole(checkpoint, checkpoint.index().optimizer, fresh.path() / kOptimizerFile);
  auto manifest = checkpoint.manifest();
  if (manifest.files.contains(kFeedbackFile)) {
    write_safetensors(fresh.path() / kFeedbackFile,
                      read_safetensors(checkpoint.path() / kFeedbackFile));
  }
  manifest.slices.reset();
  manifest.files = record_files(fresh.path());
  write_file_atomically(fresh.path() / kStateFile, manifest_text(manifest));
  fresh.move_into_place();
  return checkpoint.path();
}

}  // namespace bimetal::checkpoint
