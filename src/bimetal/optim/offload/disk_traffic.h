#pragma once
// How much goes to and from a disk, and how long that takes.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

namespace bimetal::optim {

struct Transferred {
  std::uint64_t bytes = 0;
  double seconds = 0;  ///< in which any of it was on its way
};

/// Of what is kept in a file, so far. Transfers run beside other work and beside each other.
struct DiskTraffic {
  std::uint64_t kept_bytes = 0;  ///< the file's
  Transferred read, written;
  double wait_seconds = 0;  ///< in which a step did nothing but wait for them
};

/// Of transfers one way. Safe from any threads.
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

  Transferred total() const;

 private:
  using Clock = std::chrono::steady_clock;

  void begin();
  void end(std::uint64_t bytes);

  mutable std::mutex mutex_;  ///< guards what follows
  int running_ = 0;
  Clock::time_point since_;  ///< when the first of those running began
  Transferred total_;
};

/// Of an optimizer.
class KeepsOnDisk {
 public:
  virtual ~KeepsOnDisk() = default;
  /// Of its state in updates; nothing where it is not on a disk.
  virtual std::optional<DiskTraffic> disk_traffic() const = 0;
};

}  // namespace bimetal::optim
