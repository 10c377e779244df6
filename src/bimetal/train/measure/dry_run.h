#pragma once
// Micro-batches of a model that is made for it, and measurements of them at the boundaries of its
// units.

#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/device/stream_timer.h"
#include "bimetal/task/task.h"
#include "bimetal/train/measure/unit_measure.h"

namespace bimetal::train {

// Counts what libtorch allocates on a device while something runs.

/// Counts from its construction to its destruction, for this thread and the autograd threads that
/// work for it. Tensors that were there before must outlive it: libtorch warns of memory that is
/// freed without having been counted. Use from one thread.
class AllocationWatch {
 public:
  explicit AllocationWatch(const c10::Device& device);

  /// Bytes allocated and not freed since the construction.
  std::int64_t now() const;
  /// The most since the last call, or the construction.
  std::int64_t take_peak();

 private:
  class Counter;
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

// A model with one unit's parameters in memory at a time: a dry run needs it if the whole is too
// large for this rank.

/// Its parameters have sizes and types, and zeros for values while they are held. Parameters of
/// several units are held from their first use to drop_all(). Use from one thread.
class UnitMemory {
 public:
  /// Nothing: the task makes its models whole.
  static std::optional<UnitMemory> make(const task::Task& task, const torch::Device& device,
                                        torch::Dtype dtype);

  const task::Model& model() const noexcept { return model_; }

  void hold(std::size_t unit);
  void drop(std::size_t unit);
  void drop_all();
  std::int64_t held_bytes() const noexcept { return held_; }

 private:
  struct Part {
    torch::Tensor tensor;
    bool shared = false;
    bool there = false;
  };

  explicit UnitMemory(task::Model model);
  void drop(Part& part);

  task::Model model_;
  std::vector<Part> parts_;
  std::vector<std::vector<std::size_t>> of_unit_;  ///< indices of parts
  std::int64_t held_ = 0;
};

/// The figures of one unit for one number of samples: bytes and seconds.
struct UnitRun {
  double output = 0, saved = 0, forward_peak = 0, backward_peak = 0;
  double forward_s = 0, backward_s = 0;
};

/// The owner of each trained tensor: the first unit that has it.
struct Owners {
  std::vector<torch::Tensor> tensors;
  std::vector<std::size_t> unit;
  std::vector<bool> shared;
};

/// The bytes of all tensors of a batch, or of a unit's outputs.
double bytes_of(const task::Values& values);

/// Runs micro-batches of a model and writes down what happens between its units. Use from one
/// thread.
class DryRun {
 public:
  /// `prepare` may change the model before it is run: it is there whole, and on the device.
  DryRun(const task::Task& task, const UnitMeasureOptions& options,
         const std::function<void(task::Model& model)>& prepare = {});

  const task::Model& model() const { return model_; }
  const Owners& owners() const { return owners_; }
  bool by_units() const { return memory_.has_value(); }

  /// Forward and backward of the first so many training samples, unit by unit: once, or where
  /// seconds are asked for as often as a second allows, once at least, after one that warms up.
  /// Then seconds are means, since a worker with a part of a core computes at full speed until that
  /// is used up; memory is that of the last.
  std::vector<UnitRun> run(std::int64_t samples);
  /// How often anything was run.
  int runs() const { return count_; }

 private:
  std::vector<UnitRun> run_once(std::int64_t samples);
  double above_start(std::int64_t bytes) const { return static_cast<double>(bytes - start_); }

  // Without what UnitMemory holds, which is not the units' own.
  std::int64_t held() const { return memory_ ? memory_->held_bytes() : 0; }
  std::int64_t now() const { return watch_.now() - held(); }
  void note_peak();
  std::int64_t take_peak();
  void change_held(const std::function<void()>& change);
  void hold_while_used(std::size_t unit);

  torch::Tensor forward(const task::Values& batch);
  // The time to fill memory is left out, since training has filled it already. On a device that has
  // events nobody waits between units, so that seconds are those of a step, launches included; they
  // are known at the run's end.
  void start_clock();
  void stop_clock(std::size_t unit, bool backward);
  void read_spans();
  void begin_unit();
  void end_unit(std::size_t unit);
  void backward(const torch::Tensor& loss_sum, double part);

  const task::Task& task_;
  const UnitMeasureOptions& options_;
  const precision::Products products_;
  std::shared_ptr<const task::Dataset> data_;
  AllocationWatch watch_;             ///< before the model: all that it frees has been counted
  std::optional<UnitMemory> memory_;  ///< where parameters come by units
  task::Model model_;
  Owners owners_;
  std::vector<UnitRun> runs_;
  std::int64_t start_ = 0, peak_ = 0;
  double before_ = 0, filled_s_ = 0;
  int count_ = 0;
  Stopwatch clock_;
  struct Span {
    std::size_t unit = 0;
    bool backward = false;
    device::StreamTimer all;
    std::vector<device::StreamTimer> filling;
  };
  const bool events_;
  device::StreamTimer timer_;
  std::vector<device::StreamTimer> filling_;  ///< since start_clock()
  std::vector<Span> spans_;
};

}  // namespace bimetal::train
