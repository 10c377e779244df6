#include "bimetal/api/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "bimetal/api/given.h"
#include "bimetal/api/session.h"
#include "bimetal/api/stored_model.h"
#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/task/unit.h"
#include "bimetal/train/collective_update.h"
#include "bimetal/train/pipeline/choose_cuts.h"
#include "bimetal/train/pipeline/stage_compute.h"
#include "bimetal/train/replicas.h"

namespace bimetal {
namespace {

/// The same in the words of a job file.
job::JobConfig job_of(const PipelineOptions& options) {
  job::JobConfig job;
  job.mesh.stages = options.stages;
  job.mesh.replicas = options.replicas;
  job.mesh.cuts = options.cuts;
  job.mesh.schedule = options.schedule;
  job.mesh.micro_batches = options.micro_batches;
  job.mesh.tensor = options.tensor;
  job.mesh.tensor_weights = options.tensor_weights;
  job.mesh.sequence_parallel = options.sequence_parallel;
  job.zero.level = options.zero.level;
  job.train.recompute = options.recompute;
  job.train.global_batch = std::numeric_limits<std::int64_t>::max();  // which is the loop's affair
  return job;
}

/// Tells an error of a job file in the words of PipelineOptions.
template <typename Work>
auto in_words_of_options(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    std::string text = error.what();
    for (const std::string table : {"mesh.", "zero."}) {
      const auto ours = "PipelineOptions::" + (table == "mesh." ? "" : table);
      for (auto at = text.find(table); at != std::string::npos;
           at = text.find(table, at + ours.size())) {
        text.replace(at, table.size(), ours);
      }
    }
    throw Error(error.code(), text, error.rank());
  }
}

std::vector<std::string> facts_of(const PipelineOptions& options) {
  auto facts = std::vector<std::string>{
      fmt::format("Pipeline of {} stages", options.stages),
      fmt::format("replicas = {}", options.replicas),
      fmt::format("cuts = [{}]", fmt::join(options.cuts, ", ")),
      fmt::format("schedule = {}", options.schedule),
      fmt::format("micro_batches = {}", options.micro_batches),
      fmt::format("tensor = {}", options.tensor),
      fmt::format("tensor_weights = [{}]", fmt::join(options.tensor_weights, ", ")),
      fmt::format("sequence_parallel = {}", options.sequence_parallel),
      fmt::format("precision = {}", precision::name_of(options.precision)),
      fmt::format("loss_scale = {}", options.loss_scale),
      fmt::format("limits.norm = {}", options.limits.norm),
      fmt::format("limits.value = {}", options.limits.value)};
  for (auto& fact : api::facts_of(options.zero)) facts.push_back(std::move(fact));
  return facts;
}

/// Checks options that the ranks have agreed on.
void require_possible(const PipelineOptions& options) {
  const auto refuse = [](ErrorCode code, const std::string& why) {
    throw Error(code, "PipelineOptions: " + why);
  };
  if (options.stages < 1 || options.replicas < 0 || options.tensor < 1) {
    refuse(ErrorCode::InvalidArgument,
           fmt::format("{} stages, {} replicas and tensor = {}: take at least 1 stage, and 1 for "
                       "tensor",
                       options.stages, options.replicas, options.tensor));
  }
  if (options.parallel.compression.compression.scheme != comm::Scheme::none) {
    refuse(ErrorCode::Unsupported, "compression is for DataParallel alone");
  }
  in_words_of_options([&] { job::require_possible(job_of(options), {}); });
}

/// Where the tensors are to be in parts and shards: all of them must be trained.
void require_all_trained(const PipelineOptions& options, const task::Model& model) {
  if (options.tensor == 1 || options.zero.level == 0) return;
  for (const auto& [name, tensor] : model.named_parameters()) {
    if (tensor.requires_grad()) continue;
    throw Error(ErrorCode::Unsupported,
                fmt::format("PipelineOptions: '{}' is frozen (requires_grad), and tensor does not "
                            "go with zero.level then: leave one of them out",
                            name));
  }
}

/// The model with rank 0's values, and of all ranks the same.
task::Model agreed(task::Model model, const api::Session& session, const PipelineOptions& options) {
  job::require_same_facts(session.group(), facts_of(options), options.parallel.timeout);
  require_possible(options);
  require_all_trained(options, model);
  for (const auto& unit : model.units) {
    if (unit.forward) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("Pipeline does not know the forward of '{}': make it of units whose "
                            "forward takes what the one before gives (bimetal::make_unit)",
                            unit.name));
  }
  session.require_not_kept("Pipeline");
  task::require_exact(model);
  if (!model.statistics().empty()) {
    throw Error(ErrorCode::Unsupported,
                "Pipeline: stages do not go with task::GroupedBatchNorm: take "
                "torch::nn::GroupNorm, or DataParallel");
  }
  precision::require_precision(options.precision, session.device());
  const task::ModelState all(model);
  api::require_values(all);
  parallel::check_same_on_all_ranks(all, session.group(), options.parallel.timeout);
  parallel::broadcast_model(all, 0, session.group(), options.parallel.bucket_bytes,
                            options.parallel.timeout);
  return model;
}

std::vector<std::size_t> begins_of(const PipelineOptions& options, const api::Session& session,
                                   const parallel::MeshShape& shape, const task::Task& task) {
  const auto job = job_of(options);
  const auto pieces = static_cast<std::size_t>(shape.stages * train::chunks_of(job.mesh));
  const auto units = task.make_model().units.size();
  if (pieces == 1 && options.cuts.empty()) return {0};
  if (!options.cuts.empty() || pieces > units) {
    return parallel::pipeline::begins_of(options.cuts, pieces, units, "PipelineOptions::");
  }
  progress::Observer nobody;
  return train::choose_cuts(job, session.group(), shape, task, {}, nobody).begins;
}

std::shared_ptr<const parallel::Mesh> mesh_of(const PipelineOptions& options,
                                              const api::Session& session) {
  const auto& group = session.group();
  const auto shape =
      in_words_of_options([&] { return train::shape_of(job_of(options).mesh, group.size()); });
  return std::make_shared<const parallel::Mesh>(group, shape);
}

/// This rank's part of a model that agreed() has made. Collective.
api::PartOfModel take_part(const PipelineOptions& options, const api::Session& session,
                           const task::Model& whole) {
  const auto mesh = mesh_of(options, session);
  auto part = in_words_of_options([&] {
    const auto weights = train::part_weights(job_of(options).mesh, mesh->shape(), {});
    const api::GivenLoss of_all(/*inputs_only=*/true, whole);
    const auto begins = begins_of(options, session, mesh->shape(), of_all);
    return api::part_of(mesh, whole, begins, weights, options.sequence_parallel,
                        options.parallel.timeout);
  });
  part.own.stage.model.to(session.device());
  return part;
}

train::StageOptions stage_options(const PipelineOptions& options, const api::Session& session,
                                  const parallel::ModelPart& part) {
  train::StageOptions stage;
  stage.device = session.device();
  stage.speed = session.speed();
  stage.precision = options.precision;
  stage.recompute = options.recompute;
  stage.schedule = parallel::schedule::kind_named(options.schedule);
  stage.chunks = train::chunks_of(job_of(options).mesh);
  stage.micro_batches = options.micro_batches;
  stage.tensor = part.tensor_ranks();
  stage.timeout = options.parallel.timeout;
  return stage;
}

}  // namespace

struct Pipeline::Impl {
  Impl(std::shared_ptr<api::Session> s, task::Model model, PipelineOptions o)
      : session(std::move(s)),
        options(std::move(o)),
        part(take_part(options, *session, agreed(std::move(model), *session, options))),
        mesh(part.mesh),
        stored({}, session->group(), session->device(), options.zero, options.parallel,
               std::move(part)),
        own_tensors("Pipeline", stored.model(), stored.optimized()),
        given(/*inputs_only=*/true),
        of_parts(given, stored.part().tensor_ranks()),
        compute(of_parts, mesh, stored.part().stage, stored.stage_sums(),
                stage_options(options, *session, stored.part())),
        update(stored.sync(), options.parallel.timeout,
               api::update_options("PipelineOptions", options.precision, options.loss_scale,
                                   options.limits)) {
    session->set_lanes(compute.lanes());
  }

  train::StepResult try_step(torch::optim::Optimizer& optimizer);
  progress::RankFigures computed();
  void require_usable(torch::optim::Optimizer& optimizer) const;

  std::shared_ptr<api::Session> session;
  PipelineOptions options;
  api::PartOfModel part;  ///< on its way to `stored`
  std::shared_ptr<const parallel::Mesh> mesh;
  api::StoredModel stored;
  api::OwnTensors own_tensors;
  api::GivenLoss given;
  parallel::tensor::TensorTask of_parts;  ///< the same, where outputs are in parts
  train::StageCompute compute;
  train::CollectiveUpdate update;
  int group_number = session->group_number();
};

Pipeline::Pipeline(task::Model model, const Job& job, PipelineOptions options)
    : impl_(std::make_unique<Impl>(job.session_, std::move(model), std::move(options))) {}

Pipeline::~Pipeline() = default;

std::vector<torch::Tensor> Pipeline::parameters() const {
  return impl_->stored.optimized();
}

void Pipeline::step(torch::optim::Optimizer& optimizer, const MeanLoss& mean_loss) {
  auto& steps = impl_->session->steps();
  steps.open_plan();
  const api::OwnTensors::AfterStep note(impl_->own_tensors);
  api::or_end_all(impl_->session->group(), [&] { impl_->require_usable(optimizer); });
  impl_->given.begin(steps, mean_loss);
  auto result = impl_->try_step(optimizer);
  while (!result.applied) result = impl_->try_step(optimizer);
  impl_->session->end_step(result, impl_->update);
}

void Pipeline::Impl::require_usable(torch::optim::Optimizer& optimizer) const {
  session->require_of_these_ranks(group_number, "Pipeline");
  session->steps().require_dealt_to(compute.lanes().count());
  task::require_exact(stored.part().stage.model);
  own_tensors.require_usable(optimizer);
  stored.require_steps_pieces(optimizer);
  stored.place_states(optimizer);
}

/// Where a step did not fit on some rank, the next try is in smaller micro-batches.
train::StepResult Pipeline::Impl::try_step(torch::optim::Optimizer& optimizer) {
  auto& steps = session->steps();
  stored.sync().begin_step(steps.open_plan().samples.weight(), update.stages().loss_scale());
  progress::RankFigures mine;
  api::or_end_all(session->group(), [&] { mine = computed(); });
  auto result = update.run(steps.step(), mine, optimizer);
  compute.learn(result.figures);
  const auto full = std::ranges::find(result.figures, progress::Fit::too_large,
                                      [](const auto& rank) { return rank.fit; });
  if (full == result.figures.end()) return result;
  const auto rank = static_cast<int>(full - result.figures.begin());
  throw Error(ErrorCode::OutOfMemory,
              fmt::format("{} has no memory for its smallest micro-batch: cut the model otherwise "
                          "(PipelineOptions::cuts), or take recompute = \"all\"",
                          parallel::name_of(mesh->shape(), rank)),
              rank);
}

progress::RankFigures Pipeline::Impl::computed() {
  auto& steps = session->steps();
  const Stopwatch watch;
  const auto samples = steps.own_samples();
  const auto draws = task::Draws::of(steps.seed(), steps.open_plan().samples.epoch, samples);
  const auto outcome = compute.try_run(
      std::ssize(samples), [&] { return steps.batch().values; }, draws);
  progress::RankFigures mine{.batch = compute.lanes().counted(steps.own_weight()),
                             .loss_sum = outcome.loss_sum,
                             .fit = outcome.fit};
  mine.wishes = session->wishes();
  mine.compute_seconds = watch.seconds() - stored.sync().wait_seconds() + update.update_seconds();
  return mine;
}

progress::Evaluation Pipeline::evaluate(
    std::shared_ptr<const task::Dataset> data,
    const std::function<task::Values(const task::Values& outputs, const Batch& batch)>& sums,
    std::vector<std::string> metrics) {
  if (!data) throw Error(ErrorCode::InvalidArgument, "Pipeline::evaluate needs a data set");
  const api::GivenSums task(sums, std::move(metrics));
  const auto& stored = impl_->stored;
  const std::vector<double> equally(static_cast<std::size_t>(impl_->compute.lanes().count()), 0.0);
  const api::EvaluationMode mode(stored.part().stage.model);
  const api::AtEnd end([this] { impl_->given.judge_by(nullptr); });
  impl_->given.judge_by(&task);
  progress::Evaluation result;
  api::or_end_all(impl_->session->group(), [&] {
    stored.begin_passes();
    result = impl_->compute.evaluate(equally, {.device = impl_->session->device(),
                                               .speed = impl_->session->speed(),
                                               .data = std::move(data),
                                               .computed = [&] { stored.end_passes(); }});
  });
  impl_->session->tell(result);
  return result;
}

std::filesystem::path Pipeline::save(const std::filesystem::path& dir,
                                     torch::optim::Optimizer& optimizer, std::int64_t keep) {
  auto state = impl_->session->state_after(impl_->update);
  const auto step = state.step;
  auto path = impl_->stored.save({.dir = dir.string(), .keep = keep}, optimizer, std::move(state));
  impl_->session->observer().on_checkpoint(path.string(), step);
  return path;
}

std::optional<StartingPoint> Pipeline::resume(const std::filesystem::path& dir,
                                              torch::optim::Optimizer& optimizer) {
  impl_->own_tensors.require_all_of(optimizer);
  const auto state = impl_->stored.resume(dir, optimizer);
  if (!state) return std::nullopt;
  return impl_->session->go_on_with(*state, impl_->update);
}

void Pipeline::save_model(const std::filesystem::path& path) {
  impl_->stored.save_model(path);
}

}  // namespace bimetal
