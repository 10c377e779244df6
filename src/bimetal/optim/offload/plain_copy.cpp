#include "bimetal/optim/offload/plain_copy.h"

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/optim/offload/state_file.h"

namespace bimetal::optim {
namespace {

/// As large as what states are read and written in (disk_moments.h).
constexpr std::uint64_t kBlock = 4u << 20;

/// Nothing that a disk could store as less.
std::vector<std::byte> noise(std::uint64_t bytes) {
  std::mt19937 draw;
  std::vector<std::byte> block(bytes);
  std::ranges::generate(block, [&] { return static_cast<std::byte>(draw() & 0xff); });
  return block;
}

Transferred write_noise(const StateFile& file, double patience) {
  const auto block = noise(std::min(kBlock, file.bytes()));
  Transferred written;
  // Ever more between two waits for the disk, which cost something by themselves.
  std::uint64_t blocks = 2;
  while (written.bytes < file.bytes() && written.seconds < patience) {
    const Stopwatch watch;
    for (std::uint64_t i = 0; i < blocks && written.bytes < file.bytes(); ++i) {
      const auto count = std::min(kBlock, file.bytes() - written.bytes);
      file.write(std::span(block).first(count), written.bytes);
      written.bytes += count;
    }
    file.sync();
    written.seconds += watch.seconds();
    blocks *= 2;
  }
  return written;
}

}  // namespace

PlainCopy copy_plainly(const std::filesystem::path& folder, std::uint64_t most,
                       std::chrono::milliseconds patience) {
  const double limit = std::chrono::duration<double>(patience).count();
  PlainCopy copy;
  try {
    const StateFile file(folder, most);
    copy.written = write_noise(file, limit);
    file.forget_cached();
    std::vector<std::byte> block(std::min(kBlock, most));
    const Stopwatch watch;
    while (copy.read.bytes < copy.written.bytes && watch.seconds() < limit) {
      const auto count = std::min(kBlock, copy.written.bytes - copy.read.bytes);
      file.read(std::span(block).first(count), copy.read.bytes);
      copy.read.bytes += count;
    }
    copy.read.seconds = watch.seconds();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::System) throw;
    return {};
  }
  return copy;
}

}  // namespace bimetal::optim
