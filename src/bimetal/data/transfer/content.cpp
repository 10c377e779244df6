#include "bimetal/data/transfer/content.h"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/data/gzip_file.h"

namespace bimetal::data {
namespace {

constexpr std::size_t kHashedAtATime = std::size_t{1} << 20;

}  // namespace

Content content_of(const std::filesystem::path& file, progress::Meter& meter) {
  GzipFile stream(file);
  Content content;
  Hash hash;
  std::vector<std::byte> piece(kHashedAtATime);
  std::uint64_t position = 0;  // in the file as it lies there
  for (std::size_t got = piece.size(); got == piece.size();) {
    got = stream.read(piece);
    hash.add(std::span(piece).first(got));
    content.size += got;
    const auto before = std::exchange(position, stream.position());
    meter.advance(position - before);
  }
  content.digest = hash.finish();
  return content;
}

}  // namespace bimetal::data
