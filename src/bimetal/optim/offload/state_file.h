#pragma once
// A file that holds what does not fit into memory, for as long as this process lives.
//
// The speed of a disk when only a file is copied: offloading is measured against it.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

namespace bimetal::optim {

// How much goes to and from a disk, and how long that takes.

/// The bytes read or written.
struct Transferred {
  std::uint64_t bytes = 0;  ///< in all
  double seconds = 0;       ///< in which any of it was on its way
};

/// The traffic of a file, so far. Transfers run beside other work and beside each other.
struct DiskTraffic {
  std::uint64_t kept_bytes = 0;  ///< the file's
  Transferred read, written;     ///< from the file, and to it
  double wait_seconds = 0;       ///< in which a step did nothing but wait for them
};

/// Measures transfers one way. Safe from any threads.
class TransferMeter {
 public:
  /// Counts `bytes` once `transfer` has moved them; where several run at once their time counts
  /// once. Rethrows its errors, without the bytes.
  template <typename Transfer>
  void during(std::uint64_t bytes, const Transfer& transfer) {
    begin();
    try {
      transfer();
    } catch (...) {
      end(0);
      throw;
    }
    end(bytes);
  }

  Transferred total() const;  ///< so far; thread-safe

 private:
  using Clock = std::chrono::steady_clock;

  void begin();
  void end(std::uint64_t bytes);

  mutable std::mutex mutex_;  ///< guards the members below
  int running_ = 0;
  Clock::time_point since_;  ///< when the first of those running began
  Transferred total_;
};

/// An optimizer that keeps its state on a disk.
class KeepsOnDisk {
 public:
  virtual ~KeepsOnDisk() = default;
  /// The traffic of its state in updates; nothing if it is not on a disk.
  virtual std::optional<DiskTraffic> disk_traffic() const = 0;
};

/// Has no name once it is open, so that the system removes it however the process ends. All its
/// bytes are reserved at once, and 0 at first: a disk that is too small is found out before
/// training. Reads and writes go by the system's page cache. Those of ranges that do not overlap
/// are safe from any threads. Errors are Error(System) and name the folder.
class StateFile {
 public:
  /// Error(InvalidArgument) if `folder` is none.
  StateFile(const std::filesystem::path& folder, std::uint64_t bytes);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  void read(std::span<std::byte> to, std::uint64_t offset) const;  ///< blocks. Error(System)
  /// Blocks. Error(System).
  void write(std::span<const std::byte> from, std::uint64_t offset) const;

  /// The same bytes as memory, which the system brings in as they are looked at.
  std::byte* mapped() const noexcept { return mapped_; }
  /// Gives back the memory of whole pages from `offset` on, which begins one. Data that was written
  /// stays written.
  void let_go_of_mapped(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  /// Reads those that are not in memory; some may be gone again where it is short of room.
  void bring_mapped(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  /// The transfers of bring_mapped().
  Transferred brought() const { return brought_.total(); }

  /// Makes sure that written data is on the disk.
  void sync() const;
  /// Drops cached copies of data on the disk, so that it is read from there (Linux).
  void forget_cached() const noexcept;

  std::uint64_t bytes() const noexcept { return bytes_; }  ///< its size

 private:
  void open_without_name();
  void reserve() const;

  std::filesystem::path folder_;
  std::uint64_t bytes_;
  int descriptor_ = -1;
  std::byte* mapped_ = nullptr;
  mutable TransferMeter brought_;
};

// A tensor whose memory is part of a file: the system brings it in as it is looked at.

/// The alignment of the next tensor: a multiple of any disk's block and any system's page.
constexpr std::uint64_t kFileTensorAlignment = 64 << 10;

/// Use from one thread.
class FileTensor {
 public:
  FileTensor() = default;
  /// `count` elements must lie in the file from `offset` on, which is a multiple of
  /// kFileTensorAlignment for bring() and let_go().
  FileTensor(std::shared_ptr<StateFile> file, std::uint64_t offset, std::int64_t count,
             torch::ScalarType dtype);

  /// Flat, on the CPU; it keeps the file. Undefined of one made without arguments.
  const torch::Tensor& tensor() const noexcept { return tensor_; }
  /// Starts to read pages that are not in memory, without waiting; a thread does it.
  void bring() noexcept;
  /// Returns once it has been read, beside whatever else since bring(), or now.
  void arrive() noexcept;
  /// Gives its memory back; written data is in the file.
  void let_go() const noexcept;

 private:
  std::shared_ptr<StateFile> file_;
  std::uint64_t offset_ = 0;
  torch::Tensor tensor_;
  std::shared_future<void> coming_;  ///< valid from bring() to arrive()
};

/// One way after the other, each by itself.
struct PlainCopy {
  Transferred written;  ///< until it was on the disk, not in the system's cache alone
  Transferred read;     ///< back, past that cache (Linux; on a disk)
};

/// Writes up to `most` bytes into a file in `folder` and reads them back, by the calls that states
/// are written and read with (StateFile's); each way ends early once it has taken `patience`.
/// Nothing is left of the file. 0 bytes where that cannot be (no room, a disk that fails): states
/// will tell. Error(InvalidArgument) if `folder` is none.
PlainCopy copy_plainly(const std::filesystem::path& folder, std::uint64_t most,
                       std::chrono::milliseconds patience);

}  // namespace bimetal::optim
