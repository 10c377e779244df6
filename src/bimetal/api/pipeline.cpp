#include "bimetal/api/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "bimetal/api/given_loss.h"
#include "bimetal/api/own_tensors.h"
#include "bimetal/api/saved_slices.h"
#include "bimetal/api/session.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/device/device.h"
#include "bimetal/job/same_job.h"
#include "bimetal/parallel/data/broadcast.h"
#include "bimetal/parallel/data/parameter_check.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/parallel/pipeline/stage_sums.h"
#include "bimetal/task/exactness.h"
#include "bimetal/train/collective_update.h"
#include "bimetal/train/pipeline/choose_cuts.h"
#include "bimetal/train/pipeline/stage_compute.h"
#include "bimetal/train/replicas.h"

namespace bimetal {
namespace {

job::JobConfig job_of(const PipelineOptions& options) {
  job::JobConfig job;
  job.mesh.stages = options.stages;
  job.mesh.replicas = options.replicas;
  job.mesh.cuts = options.cuts;
  job.mesh.schedule = options.schedule;
  job.mesh.micro_batches = options.micro_batches;
  return job;
}

std::vector<std::string> facts_of(const PipelineOptions& options) {
  return {fmt::format("Pipeline of {} stages", options.stages),
          fmt::format("replicas = {}", options.replicas),
          fmt::format("cuts = [{}]", fmt::join(options.cuts, ", ")),
          fmt::format("schedule = {}", options.schedule),
          fmt::format("micro_batches = {}", options.micro_batches),
          fmt::format("precision = {}", precision::name_of(options.precision)),
          fmt::format("loss_scale = {}", options.loss_scale),
          fmt::format("limits.norm = {}", options.limits.norm),
          fmt::format("limits.value = {}", options.limits.value)};
}

/// The model with rank 0's values, and of all ranks the same.
task::Model agreed(task::Model model, const api::Session& session, const PipelineOptions& options) {
  job::require_same_facts(session.group(), facts_of(options), options.parallel.timeout);
  if (options.stages < 1 || options.replicas < 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("PipelineOptions: {} stages and {} replicas: take at least 1 stage",
                            options.stages, options.replicas));
  }
  for (const auto& unit : model.units) {
    if (unit.forward) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("Pipeline does not know the forward of '{}': make it of units whose "
                            "forward takes what the one before gives (task::make_unit)",
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

train::StageOptions stage_options(const PipelineOptions& options, const api::Session& session) {
  train::StageOptions stage;
  stage.device = session.device();
  stage.speed = session.speed();
  stage.precision = options.precision;
  stage.recompute = options.recompute;
  stage.schedule = parallel::schedule::kind_named(options.schedule);
  stage.chunks = train::chunks_of(job_of(options).mesh);
  stage.micro_batches = options.micro_batches;
  stage.timeout = options.parallel.timeout;
  return stage;
}

}  // namespace

struct Pipeline::Impl {
  Impl(std::shared_ptr<api::Session> s, task::Model model, PipelineOptions o)
      : session(std::move(s)),
        options(std::move(o)),
        whole(agreed(std::move(model), *session, options)),
        given(/*inputs_only=*/true, whole),
        mesh(std::make_shared<parallel::Mesh>(
            session->group(), train::shape_of(job_of(options).mesh, session->group().size()))),
        begins(begins_of(options, *session, mesh->shape(), given)),
        stage(parallel::take_part(*mesh, whole, begins, parallel::cuts_of_stages(whole, {}),
                                  options.parallel.timeout)
                  .stage),
        own_tensors("Pipeline", stage.model, stage.model.parameters()) {
    stage.model.to(session->device());
    store = std::make_shared<parallel::ReplicatedModel>(stage.model, mesh->replicas(),
                                                        options.parallel);
    sums = std::make_shared<parallel::pipeline::StageSums>(mesh, store, stage.tied,
                                                           options.parallel.timeout);
    sync = {store, {sums}};
    compute = std::make_unique<train::StageCompute>(given, mesh, stage, sums,
                                                    stage_options(options, *session));
    update = std::make_unique<train::CollectiveUpdate>(
        sync, options.parallel.timeout,
        api::update_options("PipelineOptions", options.precision, options.loss_scale,
                            options.limits));
    session->set_lanes(compute->lanes());
  }

  train::StepResult try_step(torch::optim::Optimizer& optimizer);
  progress::RankFigures computed();
  api::KeptOfModel kept() const;

  std::shared_ptr<api::Session> session;
  PipelineOptions options;
  task::Model whole;
  api::GivenLoss given;
  std::shared_ptr<const parallel::Mesh> mesh;
  std::vector<std::size_t> begins;
  parallel::pipeline::StageModel stage;
  api::OwnTensors own_tensors;
  std::shared_ptr<parallel::ParameterStore> store;
  std::shared_ptr<parallel::pipeline::StageSums> sums;
  parallel::Sync sync;
  std::unique_ptr<train::StageCompute> compute;
  std::unique_ptr<train::CollectiveUpdate> update;
  int group_number = session->group_number();
  std::optional<std::uint64_t> term;  ///< of checkpoints, once there are any
};

Pipeline::Pipeline(task::Model model, const Job& job, PipelineOptions options)
    : impl_(std::make_unique<Impl>(job.session_, std::move(model), std::move(options))) {}

Pipeline::~Pipeline() = default;

std::vector<torch::Tensor> Pipeline::parameters() const {
  return impl_->stage.model.parameters();
}

void Pipeline::step(torch::optim::Optimizer& optimizer, const MeanLoss& mean_loss) {
  auto& steps = impl_->session->steps();
  steps.open_plan();
  const api::OwnTensors::AfterStep note(impl_->own_tensors);
  api::or_end_all(impl_->session->group(), [&] {
    impl_->session->require_of_these_ranks(impl_->group_number, "Pipeline");
    steps.require_dealt_to(impl_->compute->lanes().count());
    task::require_exact(impl_->stage.model);
    impl_->own_tensors.require_usable(optimizer);
  });
  impl_->given.begin(steps, mean_loss);
  auto result = impl_->try_step(optimizer);
  while (!result.applied) result = impl_->try_step(optimizer);
  impl_->session->end_step(result, *impl_->update);
}

api::KeptOfModel Pipeline::Impl::kept() const {
  const bool first = mesh->place().replica == 0;
  task::ModelState rest(stage.model);
  rest.parameters.clear();
  return {
      .model = whole,
      .trained = whole.named_parameters(),
      .pieces = train::whole_pieces(stage.model),
      .uncut = rest,
      .gives = [this, first](
                   const train::KeptPiece& piece) { return first && sync.counts(piece.tensor); },
      .gives_uncut = first};
}

/// Where it did not fit anywhere, the next try is in smaller micro-batches.
train::StepResult Pipeline::Impl::try_step(torch::optim::Optimizer& optimizer) {
  auto& steps = session->steps();
  sync.begin_step(steps.open_plan().samples.weight(), update->stages().loss_scale());
  progress::RankFigures mine;
  api::or_end_all(session->group(), [&] { mine = computed(); });
  auto result = update->run(steps.step(), mine, optimizer);
  compute->learn(result.figures);
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
  const auto outcome = compute->try_run(
      std::ssize(samples), [&] { return steps.batch().values; }, draws);
  progress::RankFigures mine{.batch = compute->lanes().counted(steps.own_weight()),
                             .loss_sum = outcome.loss_sum,
                             .fit = outcome.fit};
  mine.wishes = session->wishes();
  mine.compute_seconds = watch.seconds() - sync.wait_seconds() + update->update_seconds();
  return mine;
}

progress::Evaluation Pipeline::evaluate(
    std::shared_ptr<const task::Dataset> data,
    const std::function<task::Values(const task::Values& outputs, const Batch& batch)>& sums,
    std::vector<std::string> metrics) {
  if (!data) throw Error(ErrorCode::InvalidArgument, "Pipeline::evaluate needs a data set");
  const api::GivenSums task(sums, std::move(metrics));
  const std::vector<double> equally(static_cast<std::size_t>(impl_->compute->lanes().count()), 0.0);
  const api::EvaluationMode mode(impl_->stage.model);
  const api::AtEnd end([this] { impl_->given.judge_by(nullptr); });
  impl_->given.judge_by(&task);
  progress::Evaluation result;
  api::or_end_all(impl_->session->group(), [&] {
    result = impl_->compute->evaluate(equally, {.device = impl_->session->device(),
                                                .speed = impl_->session->speed(),
                                                .data = std::move(data)});
  });
  impl_->session->tell(result);
  return result;
}

std::filesystem::path Pipeline::save(const std::filesystem::path& dir,
                                     torch::optim::Optimizer& optimizer, std::int64_t keep) {
  auto state = impl_->session->state_after(*impl_->update);
  const auto& group = impl_->session->group();
  if (!impl_->term) impl_->term = api::next_term(group, dir);
  state.term = *impl_->term;
  state.torch_rng = checkpoint::random_state();
  const auto step = state.step;
  auto path = api::save_kept(group, {.dir = dir.string(), .keep = keep}, impl_->kept(), optimizer,
                             std::move(state), impl_->options.parallel.timeout);
  impl_->session->observer().on_checkpoint(path.string(), step);
  return path;
}

std::optional<StartingPoint> Pipeline::resume(const std::filesystem::path& dir,
                                              torch::optim::Optimizer& optimizer) {
  impl_->own_tensors.require_all_of(optimizer);
  const auto& group = impl_->session->group();
  const auto from = api::checkpoints_in(group, dir);
  if (!from) return std::nullopt;
  const auto state = api::take_kept(group, *from, impl_->kept(), optimizer);
  checkpoint::set_random_state(state.torch_rng);
  return impl_->session->go_on_with(state, *impl_->update);
}

/// Each stage gives its own.
void Pipeline::save_model(const std::filesystem::path& path) {
  const auto& shape = impl_->mesh->shape();
  for (int stage = 0; stage < shape.stages; ++stage) {
    const auto part =
        parallel::pipeline::make_stage(impl_->whole, impl_->begins, shape.stages, stage);
    parallel::broadcast_model(part.model, parallel::rank_at(shape, {.stage = stage}),
                              impl_->session->group(), impl_->options.parallel.bucket_bytes,
                              impl_->options.parallel.timeout);
  }
  api::save_on_rank_0(impl_->session->group(), impl_->whole, path);
}

}  // namespace bimetal
