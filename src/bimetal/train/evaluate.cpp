#include "bimetal/train/evaluate.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"

namespace bimetal::train {
namespace {

constexpr std::int64_t kChunk = 250;

struct ChunkResult {
  double correct = 0;
  double loss_sum = 0;
};

ChunkResult evaluate_chunk(models::Classifier& model, const data::ImageDataset& test,
                           std::int64_t begin, const EvaluateOptions& options) {
  const Stopwatch watch;
  const auto indices = torch::arange(begin, std::min(begin + kChunk, test.size()));
  const auto batch = data::make_batch(test, indices, options.dtype);
  const auto labels = batch.y.to(options.device);
  const auto logits = model.forward(batch.x.to(options.device));
  const auto loss = torch::nn::functional::cross_entropy(
      logits, labels, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  ChunkResult result{.correct = logits.argmax(1).eq(labels).sum().item<double>(),
                     .loss_sum = loss.item<double>()};
  device::pause_for_speed(options.speed, watch.seconds());
  return result;
}

balance::Shares deal(std::span<const double> speeds, std::int64_t chunks) {
  const auto all_zero = std::ranges::all_of(speeds, [](double speed) { return speed <= 0; });
  return all_zero ? balance::equal_shares(static_cast<int>(speeds.size()), chunks)
                  : balance::weighted_shares(speeds, chunks);
}

}  // namespace

std::int64_t test_chunks(const data::ImageDataset& test) {
  return (test.size() + kChunk - 1) / kChunk;
}

ChunkSums evaluate_chunks(models::Classifier& model, const data::ImageDataset& test,
                          std::int64_t first, std::int64_t count, const EvaluateOptions& options) {
  ChunkSums sums;
  model.eval();
  const torch::NoGradGuard no_grad;
  for (auto chunk = first; chunk < first + count; ++chunk) {
    const auto [correct, loss] = evaluate_chunk(model, test, chunk * kChunk, options);
    sums.correct += correct;
    sums.loss += loss;
    sums.samples += std::min(kChunk, test.size() - chunk * kChunk);
  }
  model.train();
  return sums;
}

Evaluation evaluate(models::Classifier& model, const data::ImageDataset& test, comm::Group group,
                    std::span<const double> speeds, const EvaluateOptions& options) {
  const auto chunks = test_chunks(test);
  const auto shares = deal(speeds, chunks);
  const auto first =
      std::accumulate(shares.begin(), shares.begin() + group.rank(), std::int64_t{0});
  const auto last = first + shares[static_cast<std::size_t>(group.rank())];

  // One pair of numbers per chunk, 0 in all ranks but one: their sum over the ranks is exact, and
  // the sum over the chunks has the same order however they were dealt out.
  std::vector<double> results(2 * static_cast<std::size_t>(chunks));
  model.eval();
  {
    const torch::NoGradGuard no_grad;
    for (auto chunk = first; chunk < last; ++chunk) {
      const auto [correct, loss_sum] = evaluate_chunk(model, test, chunk * kChunk, options);
      results[2 * static_cast<std::size_t>(chunk)] = correct;
      results[2 * static_cast<std::size_t>(chunk) + 1] = loss_sum;
    }
  }
  model.train();
  group
      .all_reduce(comm::buffer(std::span(results)), comm::ReduceOp::sum,
                  Deadline::after(options.timeout))
      .wait();

  ChunkResult total;
  for (std::size_t i = 0; i < results.size(); i += 2) {
    total.correct += results[i];
    total.loss_sum += results[i + 1];
  }
  const auto samples = static_cast<double>(test.size());
  return {.accuracy = total.correct / samples, .loss = total.loss_sum / samples};
}

}  // namespace bimetal::train
