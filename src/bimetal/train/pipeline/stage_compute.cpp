#include "bimetal/train/pipeline/stage_compute.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/precision/precision.h"
#include "bimetal/predict/mesh/model_in_parts.h"
#include "bimetal/train/profile/phase.h"
#include "bimetal/train/share/compute.h"

namespace bimetal::train {
namespace {

/// The weight of a new step's figures: a single slow one is no reason to deal otherwise.
constexpr double kNews = 0.3;

/// After each step an idle replica is thought faster by this fraction, so that it is tried again
/// some time. Each trial in vain halves the fraction, because it costs a step's time.
constexpr double kDoubt = 0.02;
constexpr int kMostHalvings = 5;

double mean_of_known(const std::vector<double>& seconds) {
  double sum = 0;
  int known = 0;
  for (const auto one : seconds) {
    sum += one;
    known += one > 0 ? 1 : 0;
  }
  return known > 0 ? sum / known : 0;
}

}  // namespace

Dealer::Dealer(std::shared_ptr<const parallel::Mesh> mesh, const std::vector<double>& speeds,
               bool learns)
    : mesh_(std::move(mesh)),
      seconds_(parallel::schedule::seconds_of_equals(mesh_->widths())),
      learns_(learns && !mesh_->shape().even()) {
  const auto& shape = mesh_->shape();
  if (shape.even()) return;
  if (!speeds.empty() && speeds.size() != static_cast<std::size_t>(shape.ranks())) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("parallel.balance has {} weights: where the stages have replicas or "
                            "parts of their own number, give one for each of the {} workers",
                            speeds.size(), shape.ranks()));
  }
  // A measured 0 is unknown. A weight of 0 means no share.
  const bool weights = !learns && !speeds.empty();
  const double without = weights ? parallel::schedule::kNeverSeconds : 0;
  for (const int first : first_ranks()) {
    const auto parts = shape.tensor_of(parallel::place_of(shape, first).stage);
    double speed = 0;
    for (int part = 0; part < parts && !speeds.empty(); ++part) {
      speed += speeds[static_cast<std::size_t>(first + part)];
    }
    seconds_of(first) = speed > 0 ? 1 / speed : without;
  }
  if (weights) require_weights();
}

/// One rank of each replica.
std::vector<int> Dealer::first_ranks() const {
  const auto& shape = mesh_->shape();
  std::vector<int> ranks;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    if (parallel::place_of(shape, rank).tensor == 0) ranks.push_back(rank);
  }
  return ranks;
}

double& Dealer::seconds_of(int rank) {
  const auto place = parallel::place_of(mesh_->shape(), rank);
  return seconds_[static_cast<std::size_t>(place.stage)][static_cast<std::size_t>(place.replica)];
}

void Dealer::require_weights() const {
  const auto& shape = mesh_->shape();
  for (int stage = 0; stage < shape.stages; ++stage) {
    const auto& of_stage = seconds_[static_cast<std::size_t>(stage)];
    if (std::ranges::min(of_stage) < parallel::schedule::kNeverSeconds) continue;
    const int first = parallel::rank_at(shape, {stage, 0, 0});
    const int last = first + shape.replicas_of(stage) * shape.tensor_of(stage) - 1;
    const auto ranks = first == last ? fmt::format("rank {}", first)
                                     : fmt::format("one of ranks {} to {}", first, last);
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("parallel.balance leaves stage {} of {} to nobody: give {} a weight "
                            "above 0",
                            stage, shape.stages, ranks));
  }
}

parallel::schedule::Deal Dealer::spread(std::span<const std::int64_t> samples) const {
  return {seconds_, samples};
}

parallel::schedule::Deal Dealer::deal(std::span<const std::int64_t> samples) {
  auto dealt = spread(samples);
  dealt_.clear();
  for (int rank = 0; learns_ && rank < mesh_->shape().ranks(); ++rank) {
    const auto place = parallel::place_of(mesh_->shape(), rank);
    dealt_.push_back(dealt.samples(place.stage, place.replica));
  }
  return dealt;
}

void Dealer::learn(std::span<const progress::RankFigures> figures) {
  trials_.resize(dealt_.size());
  if (dealt_.empty()) return;
  const auto firsts = first_ranks();
  for (const int first : firsts) {
    const auto dealt = dealt_[static_cast<std::size_t>(first)];
    const auto stage = parallel::place_of(mesh_->shape(), first).stage;
    double taken = 0;
    for (int part = 0; part < mesh_->shape().tensor_of(stage); ++part) {
      taken = std::max(taken, figures[static_cast<std::size_t>(first + part)].compute_seconds);
    }
    if (dealt > 0 && taken > 0) learn_of(first, taken / static_cast<double>(dealt));
  }
  for (const int first : firsts) {
    if (dealt_[static_cast<std::size_t>(first)] == 0) doubt(first);
  }
}

void Dealer::learn_of(int rank, double seen) {
  auto& known = seconds_of(rank);
  auto& trial = trials_[static_cast<std::size_t>(rank)];
  if (trial.idle) {
    known = seen;
    trial.in_vain = std::min(trial.in_vain + 1, kMostHalvings);  // until it gets something again
  } else {
    known = known > 0 ? std::fma(kNews, seen - known, known) : seen;  // as on any machine
    trial.in_vain = 0;
  }
  trial.idle = false;
}

void Dealer::doubt(int rank) {
  auto& known = seconds_of(rank);
  auto& trial = trials_[static_cast<std::size_t>(rank)];
  trial.idle = true;
  if (known > 0) {
    known *= 1 - kDoubt / (1 << trial.in_vain);
  } else {
    const auto stage = parallel::place_of(mesh_->shape(), rank).stage;
    known = mean_of_known(seconds_[static_cast<std::size_t>(stage)]);
  }
}

namespace {

const char* word_for(parallel::schedule::What what) {
  using parallel::schedule::What;
  switch (what) {
    case What::forward: return "forward";
    case What::backward: return "backward";
    case What::backward_input: return "backward of inputs";
    case What::backward_weight: return "backward of weights";
  }
  return "";
}

/// Marks for a profile: the phase, and in it the work and its micro-batch.
template <typename Work>
void marked(const char* phase, const parallel::schedule::Action& action, int chunks,
            const Work& work) {
  const Phase around(phase);
  const Phase mark([&] {
    const auto chunk = chunks > 1 ? fmt::format(" in chunk {}", action.chunk) : std::string();
    return fmt::format("{}{} of micro-batch {}{}",
                       phase == Phase::kBubble ? parallel::kWaitingFor : "", word_for(action.what),
                       action.micro_batch, chunk);
  });
  work();
}

parallel::pipeline::RunnerOptions runner_options(const StageOptions& options, bool recomputes) {
  parallel::pipeline::RunnerOptions runner;
  runner.kind = options.schedule;
  runner.chunks = options.chunks;
  runner.split = !recomputes;
  runner.device = options.device;
  runner.speed = options.speed;
  if (options.tensor) {
    runner.waited = [tensor = options.tensor] { return tensor->seconds(); };
  }
  runner.compression = options.compression;
  runner.vendor = options.vendor;
  runner.timeout = options.timeout;
  runner.around = [chunks = options.chunks](const parallel::schedule::Action& action,
                                            const std::function<void()>& compute) {
    const bool forward = action.what == parallel::schedule::What::forward;
    marked(forward ? Phase::kForward : Phase::kBackward, action, chunks, compute);
  };
  runner.around_wait = [chunks = options.chunks](const parallel::schedule::Action& action,
                                                 const std::function<void()>& wait) {
    marked(Phase::kBubble, action, chunks, wait);
  };
  return runner;
}

std::vector<task::Segments> segments_of(const parallel::pipeline::StageModel& stage,
                                        const std::string& recompute) {
  std::vector<task::Segments> segments;
  for (const auto& piece : stage.pieces) {
    segments.emplace_back(piece, recomputed_at_once(recompute, piece.units.size()));
  }
  return segments;
}

/// The error that tensor ranks get if they are not at fault.
bool given_up_elsewhere(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.code() == ErrorCode::Aborted;
  } catch (...) {
    return false;
  }
}

bool any_recomputed(const std::vector<task::Segments>& segments) {
  return std::ranges::any_of(segments, [](const auto& piece) { return piece.recomputed() > 0; });
}

}  // namespace

// The stages of a lane must agree, and it does no harm that lanes do.
MicroBatch agreed_limit(const parallel::Mesh& mesh, const task::Task& task,
                        const StageOptions& options) {
  const auto data = task.training();
  const MicroBatch own(options.micro_batch, options.device, data ? task::typical_weight(*data) : 1);
  return {least_limit(mesh.world(), own, Deadline::after(options.timeout)), options.device};
}

int micro_batches_of(const StageOptions& options, const parallel::MeshShape& shape,
                     const MicroBatch& limit, std::int64_t samples) {
  if (options.micro_batches > 0) return static_cast<int>(options.micro_batches);
  return parallel::schedule::usual_micro_batches(options.schedule, shape.pipeline_ranks(), samples,
                                                 limit.pieces(samples));
}

StageCompute::StageCompute(const task::Task& task, std::shared_ptr<const parallel::Mesh> mesh,
                           parallel::pipeline::StageModel stage,
                           std::shared_ptr<parallel::pipeline::StageSums> sums,
                           StageOptions options)
    : ShareCompute({mesh->shape(), mesh->world().rank()}),
      task_(task),
      mesh_(std::move(mesh)),
      stage_(std::move(stage)),
      sums_(std::move(sums)),
      options_(std::move(options)),
      products_(options_.precision),
      limit_(agreed_limit(*mesh_, task_, options_)),
      dealer_(mesh_, options_.speeds, options_.learns_speeds),
      segments_(segments_of(stage_, options_.recompute)),
      runner_(*mesh_, runner_options(options_, any_recomputed(segments_))) {
  parallel::schedule::require_possible(options_.schedule, {.stages = mesh_->shape().stages,
                                                           .micro_batches = asked_micro_batches(1),
                                                           .chunks = options_.chunks,
                                                           .windows = mesh_->windows()});
}

int StageCompute::asked_micro_batches(std::int64_t samples) const {
  return micro_batches_of(options_, mesh_->shape(), limit_, samples) * finer_;
}

/// Shares differ: one that is smaller than the others has fewer. A task's code need not take empty
/// micro-batches.
int StageCompute::micro_batches(std::int64_t samples) const {
  return parallel::schedule::micro_batches_filled(
      options_.schedule, mesh_->shape().pipeline_ranks(), asked_micro_batches(samples), samples);
}

Compute::Outcome StageCompute::try_run(std::int64_t samples,
                                       const std::function<task::Values()>& fetch,
                                       const task::Draws& draws) {
  Compute::Outcome outcome;
  task::Values share;
  const auto missing = device::without_memory_for(options_.device, [&] { share = fetch(); });
  if (samples == 0) return outcome;
  const auto count = micro_batches(samples);
  const auto sizes = parallel::schedule::micro_batch_sizes(samples, count);
  std::vector<std::int64_t> begins = {0};
  for (const auto size : sizes) begins.push_back(begins.back() + size);

  const precision::CastCache cache;
  auto result =
      runner_.run(dealer_.deal(sizes), work_on(share, begins, draws, missing), sums_->store());
  sums_->add_wait(result.wait_seconds);
  if (!result.incomplete) {
    if (mesh_->place().tensor == 0) outcome.loss_sum = result.loss_sum;
    return outcome;
  }
  // Elsewhere, if not here: who ran out of memory tells.
  if (!result.error || given_up_elsewhere(result.error)) return outcome;
  outcome.error = device::without_memory_for(
      options_.device, [&] { std::rethrow_exception(std::move(result.error)); });
  const bool finer = count < samples && 2 * count <= parallel::schedule::kMostMicroBatches;
  if (!missing && begin_recomputing()) {
    outcome.fit = progress::Fit::try_recomputing;
  } else {
    outcome.fit = !missing && finer ? progress::Fit::try_smaller_pieces : progress::Fit::too_large;
  }
  return outcome;
}

bool StageCompute::begin_recomputing() {
  // Parts of tensors are computed again by all that have them, or by none.
  if (options_.recompute != "auto" || options_.tensor || any_recomputed(segments_)) return false;
  segments_ = segments_of(stage_, "all");
  if (!any_recomputed(segments_)) return false;
  runner_.never_split();
  return true;
}

parallel::pipeline::StageWork StageCompute::work_on(const task::Values& share,
                                                    std::span<const std::int64_t> begins,
                                                    const task::Draws& draws,
                                                    const std::exception_ptr& missing) {
  const auto piece = [&share, begins, missing](int micro_batch) {
    if (missing) std::rethrow_exception(missing);
    const auto i = static_cast<std::size_t>(micro_batch);
    return task::slice(share, begins[i], begins[i + 1]);
  };
  parallel::pipeline::StageWork work;
  work.inputs = [this, piece](int micro_batch) { return task_.inputs(piece(micro_batch)); };
  work.forward = [this, &draws, begins, missing](int chunk, int micro_batch,
                                                 const task::Values& inputs) {
    if (missing) std::rethrow_exception(missing);
    const auto i = static_cast<std::size_t>(micro_batch);
    const task::DrawScope scope(draws.slice(begins[i], begins[i + 1]));
    const precision::Autocast cast(options_.device.type(), options_.precision);
    return segments_[static_cast<std::size_t>(chunk)].run(
        options_.channels_last ? task::in_channels_last(inputs) : inputs);
  };
  work.loss_sum = [this, &draws, begins, piece](int micro_batch, const task::Values& outputs) {
    const auto i = static_cast<std::size_t>(micro_batch);
    const task::DrawScope scope(draws.slice(begins[i], begins[i + 1]));
    const precision::Autocast cast(options_.device.type(), options_.precision);
    const auto loss = task_.loss_sum(outputs, piece(micro_batch));
    // As Compute has it: a sum may exceed what float16 can hold.
    const bool low = precision::is_half(options_.precision);
    return low && loss.defined() ? loss.to(torch::kFloat32) : loss;
  };
  work.survivable = [this](const std::exception_ptr& error) {
    return device::is_out_of_memory(error) || (options_.tensor && given_up_elsewhere(error));
  };
  if (options_.tensor) {
    work.gave_up = [this] {
      options_.tensor->give_up(fmt::format(
          "rank {} cannot compute this step: it, or a stage before it, is out of memory",
          mesh_->world().rank()));
    };
  }
  return work;
}

void StageCompute::learn(std::span<const progress::RankFigures> figures) {
  const auto any = [&](auto which) { return std::ranges::any_of(figures, which); };
  const bool stopped = any([](const auto& rank) { return rank.fit != progress::Fit::fits; });
  if (!stopped) return dealer_.learn(figures);
  if (options_.tensor) options_.tensor->renew();
  const bool finer =
      any([](const auto& rank) { return rank.fit == progress::Fit::try_smaller_pieces; });
  if (finer) finer_ *= 2;
}

progress::Evaluation StageCompute::evaluate(std::span<const double> speeds,
                                            const predict::EvaluateOptions& options) {
  stage_.model.eval();
  const auto through = predict::through_stages(
      *mesh_, stage_, runner_,
      [this](std::span<const std::int64_t> chunks) { return dealer_.spread(chunks); });
  auto result = predict::evaluate(task_, through, mesh_->world(), speeds, options);
  stage_.model.train();
  return result;
}

}  // namespace bimetal::train
