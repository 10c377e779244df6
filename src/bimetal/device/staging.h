#pragma once
// The way of gradients between a device and the network: host memory that the device copies to and
// from without stopping its computation. Device-generic: streams, events and page-locked memory are
// reached through libtorch's accelerator interface; on the CPU every copy is an ordinary one that
// has ended when the call returns.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <optional>

#include "bimetal/base/deadline.h"

namespace bimetal::device {

/// A stream of an accelerator beside the current one. Devices without streams of their own (Metal)
/// give their only one: work is then ordered with all other, which is right, only without overlap.
c10::Stream stream_of_its_own(const torch::Device& device);

/// `count` zeros in host memory: page-locked where `device` has such memory and the operating
/// system grants it, else ordinary (copies are then right but not asynchronous).
torch::Tensor host_buffer(std::int64_t count, torch::ScalarType dtype, const torch::Device& device);

/// The same, with whatever was there.
torch::Tensor unset_host_buffer(std::int64_t count, torch::ScalarType dtype,
                                const torch::Device& device);

/// A point in a device's queue of copies. A default mark has always been passed.
class CopyMark {
 public:
  CopyMark() = default;
  explicit CopyMark(c10::Event event) : event_(std::move(event)) {}

  /// Whether everything queued before the mark has run. Never blocks.
  bool passed() const;

  /// Blocks until passed(); Error(Timeout) at `deadline`.
  void wait(Deadline deadline) const;

 private:
  std::optional<c10::Event> event_;
};

/// Passed once everything has ended that this thread's current stream of `device` has queued.
CopyMark mark_current_stream(const torch::Device& device);

/// Copies between one device and the host. Use from one thread at a time.
///
/// Copies to the host run on a stream of their own, each behind the work that the current stream
/// has queued at the call, so that they overlap with later computation. Copies to the device run on
/// the current stream: later computations see them without further waiting. Or on another one
/// beside it, until join().
class HostStaging {
 public:
  explicit HostStaging(const torch::Device& device);

  /// Starts copying `source` (on the device) into `host` of the same shape. Both must stay alive
  /// and unchanged until a mark made afterwards is passed.
  void to_host(const torch::Tensor& source, torch::Tensor host);

  /// Starts copying `host` into `target` (on the device) of the same shape. `host` must stay
  /// unchanged until a mark made afterwards is passed.
  void to_device(const torch::Tensor& host, torch::Tensor target);

  /// The same beside the current stream's queued work, none of which may use `target`. Once a copy
  /// of `target` to the host has ended, only work queued since then can use it.
  void to_device_beside(const torch::Tensor& host, torch::Tensor target);

  /// Later work on the current stream sees all copies to the device begun so far.
  void join();

  /// Passed once all copies to the host begun so far have ended.
  CopyMark mark_to_host() const;

  /// The same, and everything that the current stream has queued so far.
  CopyMark mark_all() const;

  /// Passed once all copies to the device begun so far on the current stream, or joined to it, have
  /// ended.
  CopyMark mark_to_device() const;

 private:
  c10::Stream current_stream() const;

  torch::Device device_;
  std::optional<c10::Stream> to_host_;    ///< empty on the CPU
  std::optional<c10::Stream> to_device_;  ///< from its first use on
  bool beside_ = false;                   ///< copies that have not been joined
};

}  // namespace bimetal::device
