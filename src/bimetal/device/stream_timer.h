#pragma once
// A device's work, in seconds and numbers, without stopping the device to look.

#include <c10/core/Event.h>
#include <torch/csrc/api/include/torch/types.h>

#include <optional>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/device/staging.h"

namespace bimetal::device {

/// How long an accelerator's current stream takes from one point to another, by events. Use from
/// one thread.
class StreamTimer {
 public:
  /// Errors: c10::Error for a device whose events keep no time, at the first begin().
  explicit StreamTimer(const torch::Device& device) : device_(device) {}

  void begin() { begin_ = mark(); }
  void end() { end_ = mark(); }

  /// From the last begin() to the end() behind it, 0 before there was one. The host has to know
  /// that the device is past it: by having read a later result.
  double seconds() const;

 private:
  std::optional<c10::Event> mark() const;

  torch::Device device_;
  std::optional<c10::Event> begin_, end_;
};

/// All elements of some tensors, one after the other, in the double precision that the device has:
/// those on one device by one copy, for which alone the host waits.
std::vector<double> read_together(const std::vector<torch::Tensor>& tensors);

/// The same numbers of tensors on one accelerator, for which the host waits when it wants them.
/// Use from one thread.
class LateNumbers {
 public:
  explicit LateNumbers(const std::vector<torch::Tensor>& tensors);
  /// Error(Timeout) if the device has not come to them at `deadline`.
  std::vector<double> take(Deadline deadline) const;

 private:
  torch::Tensor there_, here_;
  CopyMark copied_;
};

}  // namespace bimetal::device
