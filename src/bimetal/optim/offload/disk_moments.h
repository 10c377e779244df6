#pragma once
// Adam's two moments of every parameter in a file, which updates read and write in chunks beside
// the computation: the previous chunk is written and the next one read while one is stepped
// (Rajbhandari et al., "ZeRO-Infinity", SC 2021, §6.3).

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "bimetal/optim/offload/state_file.h"

namespace bimetal::optim {

/// Use from one thread.
class DiskMoments {
 public:
  /// The moments of `parameters`, in their order; zeros. Errors: StateFile's.
  DiskMoments(const std::vector<torch::Tensor>& parameters, const std::filesystem::path& folder);

  /// Flat tensors on the CPU over the file's memory, for code that reads states as tensors. They
  /// keep the file.
  torch::Tensor mean(std::size_t parameter) const;
  torch::Tensor square(std::size_t parameter) const;  ///< the second moment, likewise

  /// Puts a parameter's state into the file. Both of its count and type, on any device.
  void store(std::size_t parameter, const torch::Tensor& mean, const torch::Tensor& square);

  /// Elements [offset, offset + count) of a parameter, with their moments in memory, which the call
  /// may change.
  using Step = std::function<void(std::size_t parameter, std::int64_t offset, std::int64_t count,
                                  const torch::Tensor& mean, const torch::Tensor& square)>;

  /// Calls `step` for all elements of the `parameters` named, in this thread and in their order.
  /// The memory of three chunks is held meanwhile. Rethrows `step`'s errors; StateFile's.
  void update(const std::vector<std::size_t>& parameters, const Step& step);

  /// The traffic of updates.
  DiskTraffic traffic() const;

 private:
  struct Place {
    std::uint64_t mean_at, square_at;
    std::int64_t count;
    torch::ScalarType dtype;
  };
  struct Segment {
    std::size_t parameter;
    std::int64_t offset, count;
    std::uint64_t in_buffer;  ///< its means'; its squares come next
  };
  using Chunk = std::vector<Segment>;

  std::vector<Chunk> chunks_of(const std::vector<std::size_t>& parameters) const;
  template <typename Transfer>
  void transfer(const Chunk& chunk, std::byte* buffer, const Transfer& transfer) const;
  std::uint64_t moved_bytes(const Chunk& chunk) const;
  void read(const Chunk& chunk, std::byte* buffer);
  void write(const Chunk& chunk, std::byte* buffer);
  void wait_for(std::future<void>& work);
  void step_all(const Chunk& chunk, std::byte* buffer, const Step& step) const;

  std::vector<Place> places_;
  std::shared_ptr<StateFile> file_;
  TransferMeter read_, written_;
  double wait_seconds_ = 0;
};

}  // namespace bimetal::optim
