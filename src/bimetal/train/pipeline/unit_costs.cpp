#include "bimetal/train/pipeline/unit_costs.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"
#include "bimetal/device/host_allocator.h"
#include "bimetal/parallel/pipeline/measured_cut.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/precision/autocast.h"
#include "bimetal/task/draws.h"
#include "bimetal/train/measure/unit_memory.h"
#include "bimetal/train/out_of_memory.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/tensor/replicas.h"

namespace bimetal::train {
namespace {

class Measurement {
 public:
  Measurement(const task::Task& task, const UnitProbe& probe) : task_(task), probe_(probe) {
    if (probe.by_units) memory_ = UnitMemory::make(task, probe.device, probe.dtype);
    model_ = memory_ ? memory_->model() : task.make_model();
    if (!memory_) model_.to(probe.device, probe.dtype);
    const auto data = task.training();
    const auto samples = std::min(probe.samples, data->size());
    batch_ = task::to_device(task::batch_of(*data, 0, samples), probe.device);
    draws_ = task::Draws::of_nobody(samples);
    seconds_.resize(model_.units.size());
  }

  std::vector<double> run() {
    pass();  // kernels are chosen, memory is fetched
    std::ranges::fill(seconds_, 0.0);
    const Stopwatch watch;
    int passes = 0;
    do {
      pass();
      ++passes;
    } while (watch.seconds() < std::chrono::duration<double>(probe_.budget).count());
    for (auto& seconds : seconds_) seconds /= passes;
    return seconds_;
  }

 private:
  template <typename Work>
  void timed(std::size_t unit, const Work& work) {
    const Stopwatch watch;
    work();
    device::synchronize(probe_.device);
    device::pause_for_speed(probe_.speed, watch.seconds());
    seconds_[unit] += watch.seconds();
  }

  // Backward of a unit follows its forward at once: what the gradient of its outputs is changes
  // nothing in its time.
  void pass() {
    const task::DrawScope scope(draws_);
    auto inputs = task_.inputs(batch_);
    for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
      const precision::CastCache cache;
      if (memory_) memory_->hold(unit);
      const auto outputs = forward(unit, inputs);
      backward(unit, outputs);
      inputs = leaves_of(outputs);
      if (memory_) memory_->drop(unit);
    }
    if (memory_) memory_->drop_all();
  }

  task::Values forward(std::size_t unit, const task::Values& inputs) {
    task::Values outputs;
    timed(unit, [&] {
      const precision::Autocast cast(probe_.device.type(), probe_.precision);
      outputs = model_.units[unit].forward(inputs);
      if (unit + 1 == model_.units.size()) outputs = {task_.loss_sum(outputs, batch_)};
    });
    return outputs;
  }

  void backward(std::size_t unit, const task::Values& outputs) {
    task::Values from, gradients;
    for (const auto& output : outputs) {
      if (!output.requires_grad()) continue;
      from.push_back(output);
      gradients.push_back(torch::ones_like(output));
    }
    if (!from.empty()) timed(unit, [&] { torch::autograd::backward(from, gradients); });
    for (const auto& [name, parameter] : model_.units[unit].parameters) {
      parameter.mutable_grad() = torch::Tensor();
    }
  }

  static task::Values leaves_of(const task::Values& outputs) {
    task::Values leaves;
    for (const auto& output : outputs) {
      leaves.push_back(output.detach().set_requires_grad(output.requires_grad()));
    }
    return leaves;
  }

  const task::Task& task_;
  const UnitProbe& probe_;
  std::optional<UnitMemory> memory_;  ///< where parameters come by units
  task::Model model_;
  task::Values batch_;
  task::Draws draws_;
  std::vector<double> seconds_;
};

std::vector<double> by_elements(const task::Task& task) {
  std::vector<double> elements;
  for (const auto& unit : make_model_of_sizes(task).units) {
    double sum = 1;
    for (const auto& parameter : unit.parameters) {
      sum += static_cast<double>(parameter.tensor.numel());
    }
    elements.push_back(sum);
  }
  return elements;
}

/// What ranks have measured, rank by rank; -1 where a unit could not be.
using Measured = std::vector<double>;

Measured measure_all(comm::Group group, std::size_t units, const task::Task& task,
                     const UnitProbe& probe) {
  auto mine = unit_seconds(task, probe);
  mine.resize(units, -1);
  Measured all(units * static_cast<std::size_t>(group.size()));
  group.all_gather(comm::buffer(std::span(std::as_const(mine))), comm::buffer(std::span(all)))
      .wait();
  return all;
}

/// What each rank does alone; nothing is known of any if one could not be measured.
std::vector<double> rates_of(const Measured& all, std::size_t units) {
  std::vector<double> rates(all.size() / units);
  if (all.empty() || std::ranges::min(all) < 0) return rates;
  for (std::size_t rank = 0; rank < rates.size(); ++rank) {
    const auto of_rank = std::span(all).subspan(rank * units, units);
    rates[rank] = 1 / std::reduce(of_rank.begin(), of_rank.end());
  }
  return rates;
}

/// Of `samples` samples in the units that each rank has; nothing where they were not measured.
std::vector<double> speeds_at(const Measured& all, std::size_t units,
                              const parallel::MeshShape& shape,
                              const std::vector<std::size_t>& begins, double samples) {
  std::vector<double> speeds;
  for (int rank = 0; rank < shape.ranks() && !all.empty(); ++rank) {
    const auto stage = static_cast<std::size_t>(parallel::place_of(shape, rank).stage);
    const auto end = stage + 1 < begins.size() ? begins[stage + 1] : units;
    const auto first =
        all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * units);
    const auto seconds = std::reduce(first + static_cast<std::ptrdiff_t>(begins[stage]),
                                     first + static_cast<std::ptrdiff_t>(end));
    speeds.push_back(seconds > 0 ? samples / seconds : 0);
  }
  return speeds;
}

/// Weights of micro-batches, where it is not speed that they go by.
std::vector<double> dealt_by(const job::ParallelConfig& parallel,
                             const parallel::MeshShape& shape) {
  const auto ranks = static_cast<std::size_t>(shape.ranks());
  if (parallel.balance == balance::Policy::Equal) return std::vector<double>(ranks, 1.0);
  return parallel.weights.size() == ranks ? parallel.weights : std::vector<double>();
}

/// As measured_cut(): where something is known of memory, with some of it to spare, or none, or
/// lacking as much as a plan may be wrong by, or that in micro-batches of one sample; where that
/// does not do, as if nothing were known.
std::vector<std::size_t> fitting_cut(const parallel::pipeline::MeasuredUnits& measured,
                                     const parallel::MeshShape& shape, std::size_t pieces,
                                     int micro_batches, const StageNeeds* needs) {
  using parallel::pipeline::measured_cut;
  std::vector<parallel::schedule::FittingEnds> rooms;
  if (needs) {
    for (const double part : {1 - plan::kDoubt, 1.0, 1 + plan::kDoubt}) {
      rooms.push_back(needs->within(part, pieces));
    }
    rooms.push_back(needs->at_least().within(1 + plan::kDoubt, pieces));
  }
  for (const auto& room : rooms) {
    try {
      return measured_cut(measured, shape, pieces, micro_batches, room);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::OutOfMemory) throw;
    }
  }
  return measured_cut(measured, shape, pieces, micro_batches);
}

}  // namespace

std::vector<double> unit_seconds(const task::Task& task, const UnitProbe& probe) {
  std::vector<double> seconds;
  const auto error =
      without_memory_for(probe.device, [&] { seconds = Measurement(task, probe).run(); });
  device::give_back_freed_memory();
  return error ? std::vector<double>() : seconds;
}

int chunks_of(const job::MeshConfig& mesh) {
  return mesh.schedule == "interleaved" ? static_cast<int>(mesh.chunks) : 1;
}

ChosenCuts choose_cuts(const job::JobConfig& job, comm::Group group,
                       const parallel::MeshShape& shape, const task::Task& task,
                       const UnitProbe& probe, const StageNeeds* needs,
                       progress::Observer& observer) {
  using parallel::pipeline::begins_of;
  const auto elements = by_elements(task);
  const auto units = elements.size();
  // All measure at the same time; and where ranks are threads of one process, whose generator that
  // model was drawn from, nobody goes on to seed it before all have theirs.
  group.barrier().wait();
  const auto pieces = static_cast<std::size_t>(shape.stages * chunks_of(job.mesh));
  const bool given = !job.mesh.cuts.empty() || pieces > units;
  const bool deals = !shape.even() && job.parallel.balance == balance::Policy::Auto;
  const bool by_speed = deals || (shape.tensor > 1 && job.mesh.tensor_parts == "speed");
  Measured all;
  if (!given || by_speed) {
    observer.on_phase("measuring units");
    all = measure_all(group, units, task, probe);
  }
  auto parts = part_weights(job.mesh, rates_of(all, units));
  const auto samples = static_cast<double>(std::min(probe.samples, task.training()->size()));
  const bool measured = !all.empty() && std::ranges::min(all) >= 0;
  const auto chosen = [&](std::vector<std::size_t> begins) {
    ChosenCuts cuts{std::move(begins), std::move(parts)};
    if (measured && deals) {
      cuts.speeds = speeds_at(all, units, shape, cuts.begins, samples);
    }
    return cuts;
  };
  if (given) return chosen(begins_of(job.mesh.cuts, pieces, units));
  if (!measured) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = elements[i % units];
    observer.on_notice(
        "the whole model does not fit into the memory of every worker, so that its units were not "
        "measured: stages have about as many parameters each; mesh.cuts sets others");
  }
  return chosen(fitting_cut({all, units, parts, dealt_by(job.parallel, shape)}, shape, pieces,
                            static_cast<int>(job.mesh.micro_batches), needs));
}

}  // namespace bimetal::train
