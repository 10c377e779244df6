#include "bimetal/predict/evaluate.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <numeric>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/parallel/pipeline/stage_seconds.h"

namespace bimetal::predict {
namespace {

constexpr std::int64_t kChunk = 250;
constexpr std::int64_t kChunkWeight = 2048;  // tokens, each of which has logits of a vocabulary

/// Samples of a chunk: the same for all ranks, since it hangs on the data alone.
std::int64_t chunk_size(const task::Dataset& data) {
  return std::clamp<std::int64_t>(kChunkWeight / task::typical_weight(data), 1, kChunk);
}

std::shared_ptr<const task::Dataset> data_of(const task::Task& task,
                                             const EvaluateOptions& options) {
  if (options.data) return options.data;
  if (auto data = task.evaluation()) return data;
  throw Error(ErrorCode::InvalidArgument, "the task has no data to evaluate its model with");
}

task::Values batch_of_chunk(const task::Dataset& data, std::int64_t chunk,
                            const torch::Device& device) {
  const auto size = chunk_size(data);
  const auto begin = chunk * size, end = std::min(begin + size, data.size());
  return task::to_device(task::batch_of(data, begin, end), device);
}

/// The loss and then the metrics.
std::vector<double> numbers_of(const task::Task& task, const task::Values& outputs,
                               const task::Values& batch) {
  const auto loss = task.loss_sum(outputs, batch);
  std::vector<torch::Tensor> sums = {loss};
  for (const auto& metric : task.metrics()) {
    sums.push_back(metric.sum ? metric.sum(outputs, batch) : loss);
  }
  std::vector<double> numbers;
  for (const auto& sum : sums) numbers.push_back(sum.item<double>());
  return numbers;
}

std::vector<double> evaluate_chunk(const task::Task& task, const task::Model& model,
                                   std::int64_t chunk, const EvaluateOptions& options) {
  const auto data = data_of(task, options);
  const parallel::pipeline::ComputeWatch watch(options.waited);
  const auto batch = batch_of_chunk(*data, chunk, options.device);
  const auto outputs = task::run_units(model, task.inputs(batch));
  auto numbers = numbers_of(task, outputs, batch);
  device::pause_for_speed(options.speed, watch.seconds());
  return numbers;
}

balance::Shares deal(std::span<const double> speeds, std::int64_t chunks) {
  const auto all_zero = std::ranges::all_of(speeds, [](double speed) { return speed <= 0; });
  return all_zero ? balance::equal_shares(static_cast<int>(speeds.size()), chunks)
                  : balance::weighted_shares(speeds, chunks);
}

void add(std::span<const double> numbers, EvaluationSums& sums) {
  sums.loss += numbers.front();
  sums.metrics.resize(numbers.size() - 1);
  for (std::size_t i = 0; i < sums.metrics.size(); ++i) sums.metrics[i] += numbers[i + 1];
}

}  // namespace

std::int64_t test_chunks(const task::Dataset& test) {
  const auto size = chunk_size(test);
  return (test.size() + size - 1) / size;
}

EvaluationSums evaluate_chunks(const task::Task& task, const task::Model& model, std::int64_t first,
                               std::int64_t count, const EvaluateOptions& options) {
  EvaluationSums sums;
  model.eval();
  const torch::NoGradGuard no_grad;
  for (auto chunk = first; chunk < first + count; ++chunk) {
    add(evaluate_chunk(task, model, chunk, options), sums);
  }
  const auto data = data_of(task, options);
  const auto size = chunk_size(*data);
  sums.weight =
      task::weight_of(*data, first * size, std::min((first + count) * size, data->size()));
  model.train();
  return sums;
}

progress::Evaluation evaluation_of(const task::Task& task, const EvaluationSums& sums) {
  const auto weight = static_cast<double>(sums.weight);
  progress::Evaluation result{.loss = sums.loss / weight};
  const auto metrics = task.metrics();
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    const auto mean = sums.metrics.at(i) / weight;
    result.metrics.push_back(
        {metrics[i].name, metrics[i].of_mean ? metrics[i].of_mean(mean) : mean});
  }
  return result;
}

namespace {

/// Computes chunks on a set of ranks; results are numbers by chunk.
using Compute = std::function<void(
    std::int64_t first, std::int64_t last,
    const std::function<void(std::int64_t chunk, std::span<const double> numbers)>&)>;

progress::Evaluation evaluate_parts(const task::Task& task, comm::Group group, int part,
                                    std::span<const double> speeds, const EvaluateOptions& options,
                                    const Compute& compute) {
  const auto data = data_of(task, options);
  const auto chunks = test_chunks(*data);
  const auto shares = deal(speeds, chunks);
  const auto first = std::accumulate(shares.begin(), shares.begin() + part, std::int64_t{0});
  const auto last = first + shares[static_cast<std::size_t>(part)];

  // Some numbers per chunk, 0 in all ranks but one: their sum over the ranks is exact, and the sum
  // over the chunks has the same order however they were dealt out.
  const auto width = 1 + task.metrics().size();
  std::vector<double> results(width * static_cast<std::size_t>(chunks));
  {
    const torch::NoGradGuard no_grad;
    compute(first, last, [&](std::int64_t chunk, std::span<const double> numbers) {
      std::ranges::copy(numbers, results.begin() + chunk * static_cast<std::ptrdiff_t>(width));
    });
  }
  if (options.computed) options.computed();
  group
      .all_reduce(comm::buffer(std::span(results)), comm::ReduceOp::sum,
                  Deadline::after(options.timeout))
      .wait();

  EvaluationSums total{.weight = task::weight_of(*data, 0, data->size())};
  for (std::size_t i = 0; i < results.size(); i += width) {
    add(std::span(results).subspan(i, width), total);
  }
  return evaluation_of(task, total);
}

}  // namespace

progress::Evaluation evaluate(const task::Task& task, const task::Model& model, comm::Group group,
                              std::span<const double> speeds, const EvaluateOptions& options) {
  model.eval();
  return evaluate_parts(task, group, group.rank(), speeds, options,
                        [&](std::int64_t first, std::int64_t last, const auto& keep) {
                          for (auto chunk = first; chunk < last; ++chunk) {
                            keep(chunk, evaluate_chunk(task, model, chunk, options));
                          }
                          model.train();
                        });
}

progress::Evaluation evaluate(const task::Task& task, const Through& through, comm::Group group,
                              std::span<const double> speeds, const EvaluateOptions& options) {
  const auto data = data_of(task, options);
  return evaluate_parts(task, std::move(group), through.part, speeds, options,
                        [&](std::int64_t first, std::int64_t last, const auto& keep) {
                          through.run(
                              first, last,
                              [&](std::int64_t chunk) {
                                return task.inputs(batch_of_chunk(*data, chunk, options.device));
                              },
                              [&](std::int64_t chunk, const task::Values& outputs) {
                                const auto numbers = numbers_of(
                                    task, outputs, batch_of_chunk(*data, chunk, options.device));
                                if (through.counts) keep(chunk, numbers);
                              });
                        });
}

}  // namespace bimetal::predict
