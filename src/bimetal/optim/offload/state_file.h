#pragma once
// A file that holds what does not fit into memory, for as long as this process lives.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "bimetal/optim/offload/disk_traffic.h"

namespace bimetal::optim {

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

  void read(std::span<std::byte> to, std::uint64_t offset) const;
  void write(std::span<const std::byte> from, std::uint64_t offset) const;

  /// The same bytes as memory, which the system brings in as they are looked at.
  std::byte* mapped() const noexcept { return mapped_; }
  /// Of whole pages from `offset` on, which begins one: gives back the memory of what has been
  /// looked at; what was written stays written.
  void let_go_of_mapped(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  /// Reads those that are not in memory; some may be gone again where it is short of room.
  void bring_mapped(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  /// Of bring_mapped().
  Transferred brought() const { return brought_.total(); }

  /// What was written is on the disk.
  void sync() const;
  /// What is on the disk is nowhere else, so that it is read from there (Linux).
  void forget_cached() const noexcept;

  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  void open_without_name();
  void reserve() const;

  std::filesystem::path folder_;
  std::uint64_t bytes_;
  int descriptor_ = -1;
  std::byte* mapped_ = nullptr;
  mutable TransferMeter brought_;
};

}  // namespace bimetal::optim
