#pragma once
// What a file holds, in short: by this, copies on different machines are compared.

#include <cstdint>
#include <filesystem>

#include "bimetal/data/digest.h"
#include "bimetal/progress/meter.h"

namespace bimetal::data {

/// Size and digest of what a file holds. A gzipped file counts as what it was before: a compressed
/// and a plain copy are the same.
struct Content {
  std::uint64_t size = 0;  ///< bytes, uncompressed
  Digest digest{};
  bool operator==(const Content&) const = default;
};

/// Reads the whole file, in pieces; `meter` advances by the bytes of the file. Errors: System if it
/// cannot be read, CorruptData for damaged compression, Aborted once the meter is stopped.
Content content_of(const std::filesystem::path& file, progress::Meter& meter);

}  // namespace bimetal::data
