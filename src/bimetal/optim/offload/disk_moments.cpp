#include "bimetal/optim/offload/disk_moments.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <array>
#include <span>

#include "bimetal/base/deadline.h"
#include "bimetal/optim/offload/state_file.h"

namespace bimetal::optim {
namespace {

/// A multiple of the size of a page, and of any disk's block.
constexpr std::uint64_t kAlignment = 4096;
/// Bytes of both moments together: enough to keep a disk busy, little beside a model.
constexpr std::uint64_t kChunkBytes = 8u << 20;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::uint64_t bytes_of(std::int64_t count, torch::ScalarType dtype) {
  return static_cast<std::uint64_t>(count) * c10::elementSize(dtype);
}

/// A thread per transfer: cheap beside the millisecond that it takes, and its errors come back.
template <typename Function>
std::future<void> beside(Function function) {
  return std::async(std::launch::async, std::move(function));
}

}  // namespace

DiskMoments::DiskMoments(const std::vector<torch::Tensor>& parameters,
                         const std::filesystem::path& folder) {
  std::uint64_t end = 0;
  const auto take = [&](std::uint64_t bytes) {
    const auto at = end;
    end += aligned(bytes);
    return at;
  };
  for (const auto& parameter : parameters) {
    const auto bytes = bytes_of(parameter.numel(), parameter.scalar_type());
    const auto mean_at = take(bytes), square_at = take(bytes);
    places_.push_back({mean_at, square_at, parameter.numel(), parameter.scalar_type()});
  }
  file_ = std::make_shared<StateFile>(folder, end);
}

torch::Tensor DiskMoments::mean(std::size_t parameter) const {
  const auto& place = places_[parameter];
  return FileTensor(file_, place.mean_at, place.count, place.dtype).tensor();
}

torch::Tensor DiskMoments::square(std::size_t parameter) const {
  const auto& place = places_[parameter];
  return FileTensor(file_, place.square_at, place.count, place.dtype).tensor();
}

void DiskMoments::store(std::size_t parameter, const torch::Tensor& mean,
                        const torch::Tensor& square) {
  const auto& place = places_[parameter];
  const auto put = [&](const torch::Tensor& values, std::uint64_t offset) {
    const auto here = values.to(torch::kCPU, place.dtype).contiguous();
    TORCH_CHECK(here.numel() == place.count);
    file_->write({static_cast<const std::byte*>(here.data_ptr()), here.nbytes()}, offset);
  };
  put(mean, place.mean_at);
  put(square, place.square_at);
}

std::vector<DiskMoments::Chunk> DiskMoments::chunks_of(
    const std::vector<std::size_t>& parameters) const {
  std::vector<Chunk> chunks;
  std::uint64_t used = kChunkBytes;  // of the last one
  for (const auto parameter : parameters) {
    const auto& place = places_[parameter];
    const auto element = c10::elementSize(place.dtype);
    for (std::int64_t offset = 0; offset < place.count;) {
      if (used + 2 * kAlignment > kChunkBytes) {
        chunks.emplace_back();
        used = 0;
      }
      const auto room = (kChunkBytes - used) / 2 / kAlignment * kAlignment / element;
      const auto count = std::min(place.count - offset, static_cast<std::int64_t>(room));
      chunks.back().push_back({parameter, offset, count, used});
      used += 2 * aligned(bytes_of(count, place.dtype));
      offset += count;
    }
  }
  return chunks;
}

template <typename Transfer>
void DiskMoments::transfer(const Chunk& chunk, std::byte* buffer, const Transfer& transfer) const {
  for (const auto& segment : chunk) {
    const auto& place = places_[segment.parameter];
    const auto bytes = bytes_of(segment.count, place.dtype);
    const auto skipped = bytes_of(segment.offset, place.dtype);
    auto* const means = buffer + segment.in_buffer;
    transfer(std::span(means, bytes), place.mean_at + skipped);
    transfer(std::span(means + aligned(bytes), bytes), place.square_at + skipped);
  }
}

std::uint64_t DiskMoments::moved_bytes(const Chunk& chunk) const {
  std::uint64_t bytes = 0;
  for (const auto& segment : chunk) {
    bytes += 2 * bytes_of(segment.count, places_[segment.parameter].dtype);
  }
  return bytes;
}

void DiskMoments::read(const Chunk& chunk, std::byte* buffer) {
  read_.during(moved_bytes(chunk), [&] {
    transfer(chunk, buffer, [this](auto bytes, auto offset) { file_->read(bytes, offset); });
  });
}

void DiskMoments::write(const Chunk& chunk, std::byte* buffer) {
  written_.during(moved_bytes(chunk), [&] {
    transfer(chunk, buffer, [this](auto bytes, auto offset) { file_->write(bytes, offset); });
  });
}

void DiskMoments::wait_for(std::future<void>& work) {
  if (!work.valid()) return;
  const Stopwatch waiting;
  work.get();
  wait_seconds_ += waiting.seconds();
}

void DiskMoments::step_all(const Chunk& chunk, std::byte* buffer, const Step& step) const {
  for (const auto& segment : chunk) {
    const auto dtype = places_[segment.parameter].dtype;
    auto* const means = buffer + segment.in_buffer;
    auto* const squares = means + aligned(bytes_of(segment.count, dtype));
    step(segment.parameter, segment.offset, segment.count,
         torch::from_blob(means, {segment.count}, torch::dtype(dtype)),
         torch::from_blob(squares, {segment.count}, torch::dtype(dtype)));
  }
}

void DiskMoments::update(const std::vector<std::size_t>& parameters, const Step& step) {
  const auto chunks = chunks_of(parameters);
  if (chunks.empty()) return;
  constexpr std::size_t kBuffers = 3;
  std::array<torch::Tensor, kBuffers> memory;
  std::array<std::byte*, kBuffers> buffers{};
  for (std::size_t i = 0; i < std::min(kBuffers, chunks.size()); ++i) {
    memory[i] = torch::empty({static_cast<std::int64_t>(kChunkBytes)}, torch::kUInt8);
    buffers[i] = static_cast<std::byte*>(memory[i].data_ptr());
  }
  // Behind the buffers: on the way out of an error they wait for the threads that use these.
  std::array<std::future<void>, kBuffers> writing;
  std::future<void> reading = beside([&] { read(chunks[0], buffers[0]); });
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    auto* const buffer = buffers[i % kBuffers];
    const auto next = i + 1;
    wait_for(reading);
    if (next < chunks.size()) {
      wait_for(writing[next % kBuffers]);
      reading = beside([&, next] { read(chunks[next], buffers[next % kBuffers]); });
    }
    step_all(chunks[i], buffer, step);
    writing[i % kBuffers] = beside([&, i, buffer] { write(chunks[i], buffer); });
  }
  for (auto& work : writing) wait_for(work);
  file_->let_go_of_mapped(0, file_->bytes());
}

DiskTraffic DiskMoments::traffic() const {
  return {.kept_bytes = file_->bytes(),
          .read = read_.total(),
          .written = written_.total(),
          .wait_seconds = wait_seconds_};
}

}  // namespace bimetal::optim
