#include "bimetal/checkpoint/slices/safetensors_file.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/base/to_error.h"

namespace bimetal::checkpoint {
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
