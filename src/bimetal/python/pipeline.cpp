#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/c10d/torch_bridge.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/parallel/pipeline/loop_stage.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/pipeline/stage_seconds.h"
#include "bimetal/parallel/schedule/schedule.h"
#include "bimetal/parallel/tensor/group_ranks.h"
#include "bimetal/parallel/tensor/sequence_ranks.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

namespace pipeline = parallel::pipeline;
using NamedList = std::vector<task::NamedTensor>;
/// The tensor, where this stage has it, and the stages that do.
using TiedPair = std::pair<std::optional<torch::Tensor>, std::vector<int>>;
constexpr std::size_t kMessageBytes = 25u << 20;

task::ModelState state_of(const NamedList& parameters, const NamedList& buffers) {
  task::ModelState state;
  state.parameters = parameters;
  state.buffers = buffers;
  return state;
}

void share_model(const ProcessGroup& process_group, const NamedList& parameters,
                 const NamedList& buffers) {
  const auto& group = process_group.group;
  const auto timeout = process_group.timeout;
  const auto state = state_of(parameters, buffers);
  parallel::check_same_on_all_ranks(state, group, timeout);
  parallel::broadcast_model(state, 0, group, kMessageBytes, timeout);
}

/// Python's exceptions that a program may go on after; not Ctrl-C, nor sys.exit().
bool goes_on_after(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PythonError& raised) {
    const Locked locked;
    return raised.is_exception();
  } catch (...) {
    return true;
  }
}

bool is_out_of_memory(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PythonError& raised) {
    const Locked locked;
    return raised.is_memory_error() || device::is_out_of_memory(error);
  } catch (...) {
    return device::is_out_of_memory(error);
  }
}

/// Autograd turns a Python exception within backward into one of its own. It leaves the
/// interpreter's error set, which no further call would survive.
void carry_python_errors(const parallel::schedule::Action& /*action*/,
                         const std::function<void()>& compute) {
  try {
    compute();
  } catch (const std::exception&) {
    const Locked locked;
    if (PyErr_Occurred() == nullptr) throw;
    throw PythonError();
  }
}

std::unique_ptr<pipeline::LoopStage> make_loop_stage(const ProcessGroup& process_group, int stages,
                                                     int replicas, const NamedList& parameters,
                                                     const NamedList& buffers,
                                                     const std::vector<TiedPair>& tied,
                                                     const std::string& schedule, int chunks,
                                                     bool split, const std::string& device) {
  const auto& group = process_group.group;
  std::vector<pipeline::Tied> shared;
  for (const auto& [tensor, has_it] : tied) {
    shared.push_back({tensor.value_or(torch::Tensor()), has_it});
  }
  pipeline::LoopStageOptions options;
  options.schedule = parallel::schedule::kind_named(schedule);
  options.chunks = chunks;
  options.split = split;
  options.device = torch::Device(device);
  options.bucket_bytes = kMessageBytes;
  options.timeout = process_group.timeout;
  options.survivable = goes_on_after;
  options.out_of_memory = is_out_of_memory;
  options.around = carry_python_errors;
  return std::make_unique<pipeline::LoopStage>(
      group, parallel::MeshShape{.stages = stages, .replicas = replicas},
      state_of(parameters, buffers), shared, std::move(options));
}

/// Samples of each micro-batch, weight, digest.
using BatchParts = std::tuple<std::vector<std::int64_t>, std::int64_t, std::int64_t>;

pipeline::LoopBatch batch_of(const BatchParts& parts) {
  const auto& [samples, weight, digest] = parts;
  return {samples, weight, digest};
}

std::optional<double> train_batch(pipeline::LoopStage& stage, const BatchParts& batch, double scale,
                                  const pipeline::LoopStage::Forward& forward) {
  return stage.train(batch_of(batch), scale, forward);
}

std::optional<double> evaluate_batch(pipeline::LoopStage& stage, const BatchParts& batch,
                                     const pipeline::LoopStage::Forward& forward) {
  return stage.evaluate(batch_of(batch), forward);
}

std::vector<std::size_t> measured_cut(const std::vector<std::vector<double>>& seconds, int stages,
                                      int chunks, int micro_batches) {
  pipeline::MeasuredUnits measured{.seconds = {}, .units = seconds.front().size()};
  for (const auto& of_rank : seconds) {
    measured.seconds.insert(measured.seconds.end(), of_rank.begin(), of_rank.end());
  }
  const parallel::MeshShape shape{.stages = stages,
                                  .replicas = static_cast<int>(seconds.size()) / stages};
  return pipeline::measured_cut(measured, shape, chunks, micro_batches);
}

int usual_micro_batches(const std::string& schedule, int stages, std::int64_t samples,
                        std::int64_t pieces) {
  return parallel::schedule::usual_micro_batches(parallel::schedule::kind_named(schedule), stages,
                                                 samples, pieces);
}

}  // namespace

void bind_pipeline(Bindings& bindings) {
  bindings.function("share_model", share_model);
  bindings.function("measured_cut", measured_cut);
  bindings.function("piece_begins", pipeline::begins_of);
  bindings.function("usual_micro_batches", usual_micro_batches);
  bindings.function("micro_batch_sizes", parallel::schedule::micro_batch_sizes);
  Bindings::Class<pipeline::LoopStage>(bindings, "LoopStage")
      .made_by(make_loop_stage)
      .method("train", train_batch)
      .method("evaluate", evaluate_batch)
      .method("counts", &pipeline::LoopStage::counts, Lock::kept);
}

namespace {

namespace tensor = parallel::tensor;
constexpr std::size_t kFollowBytes = 25u << 20;

/// The ranks that have a module's tensors in parts, for layers whose forward is Python's.
class PartRanks {
 public:
  PartRanks(const ProcessGroup& process_group, std::vector<double> weights)
      : ranks_(tensor::GroupRanks::make(process_group.group, std::move(weights),
                                        process_group.timeout)) {}

  torch::Tensor sum(const torch::Tensor& x) const { return ranks_->sum(x); }

  /// As GroupRanks::shared() has it, with errors that pass through autograd to Python.
  torch::Tensor shared(const torch::Tensor& x) const {
    return tensor::both_ways(
        x, [](const torch::Tensor& given) { return given; },
        [ranks = ranks_](const torch::Tensor& gradient) {
          return c10d::guarded([&] { return ranks->sum(gradient); });
        });
  }

  /// All columns of `part` [n, columns here]. Each rank's gradient is that of its own columns, and
  /// must be the same on all ranks. Columns are dealt out as positions of sequences are.
  torch::Tensor gathered(const torch::Tensor& part, std::int64_t columns) const {
    const auto here = ranks_->part(columns);
    return tensor::both_ways(
        part,
        [ranks = ranks_, columns](const torch::Tensor& own) {
          return tensor::SequenceRanks(ranks, columns).gathered(own);
        },
        [here](const torch::Tensor& gradient) {
          return gradient.narrow(1, here.first, here.count).contiguous();
        });
  }

  torch::Tensor cross_entropy_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                  std::int64_t vocabulary, std::int64_t ignored) const {
    return ranks_->cross_entropy_sum(logits, targets, vocabulary, ignored);
  }

  void follow_first(const std::vector<torch::Tensor>& tensors) const {
    parallel::broadcast_tensors(tensors, 0, ranks_->group(), kFollowBytes, ranks_->timeout());
  }

 private:
  std::shared_ptr<const tensor::GroupRanks> ranks_;
};

/// The parameter, and task::TensorSplit's dim, grain and segments.
using Split = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>;

std::unique_ptr<tensor::Cuts> make_cuts(const std::vector<task::NamedTensor>& parameters,
                                        const std::vector<Split>& splits,
                                        std::vector<double> weights) {
  task::Unit unit{.name = "the module", .parameters = parameters, .forward = {}};
  for (const auto& [name, dim, grain, segments] : splits) {
    unit.splits.push_back({.parameter = name, .dim = dim, .grain = grain, .segments = segments});
  }
  return std::make_unique<tensor::Cuts>(task::Model{.units = {std::move(unit)}},
                                        std::move(weights));
}

std::pair<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> places(
    const tensor::Cuts& cuts, const std::string& parameter, int rank) {
  const auto found = cuts.places(parameter, rank);
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;
  for (const auto& [first, count] : found.places) parts.emplace_back(first, count);
  return {found.dim, parts};
}

std::vector<std::int64_t> whole_parts(std::int64_t total, const std::vector<double>& weights) {
  return balance::whole_parts(total, weights);
}

}  // namespace

void bind_tensor(Bindings& bindings) {
  bindings.function("whole_parts", whole_parts, Lock::kept);
  Bindings::Class<tensor::Cuts>(bindings, "TensorCuts")
      .made_by(make_cuts)
      .method("has", &tensor::Cuts::has, Lock::kept)
      .method("part", &tensor::Cuts::part, Lock::kept)
      .method("places", places, Lock::kept);
  Bindings::Class<PartRanks>(bindings, "PartRanks")
      .made_of<const ProcessGroup&, std::vector<double>>()
      .method("shared", &PartRanks::shared)
      .method("sum", &PartRanks::sum)
      .method("gathered", &PartRanks::gathered)
      .method("cross_entropy_sum", &PartRanks::cross_entropy_sum)
      .method("follow_first", &PartRanks::follow_first);
}

}  // namespace bimetal::python
