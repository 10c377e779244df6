#include "bimetal/api/data_parallel.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "bimetal/api/given.h"
#include "bimetal/api/session.h"
#include "bimetal/api/stored_model.h"
#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/predict/evaluate.h"
#include "bimetal/task/batch_norm.h"
#include "bimetal/task/segments.h"
#include "bimetal/task/unit.h"
#include "bimetal/train/collective_update.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/share/compute.h"

namespace bimetal {
namespace api {

/// The parts that a DataParallel is made of.
struct Source {
  std::shared_ptr<const task::Task> task = {};
  task::Model units = {};
  std::shared_ptr<torch::nn::Module> owner = {};  ///< of the units, where a module was given

  const char* kind() const { return task ? "task" : "model"; }
};

}  // namespace api

namespace {

using api::Source;

void require_group(std::int64_t of_model, std::int64_t of_batches) {
  if (of_batches % of_model == 0) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the model normalises {} samples with each other, but batches are dealt "
                          "out in groups of {}: set BalancedOptions::sample_group to {}",
                          of_model, of_batches, of_model));
}

/// Checks options that the ranks have agreed on.
void require_possible(const DataParallelOptions& options, const Source& source) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::InvalidArgument, "DataParallelOptions: " + why);
  };
  const auto scheme = options.parallel.compression.compression.scheme;
  if (options.zero.level > 0 && scheme != comm::Scheme::none) {
    refuse("compression goes with zero.level 0 alone");
  }
  const auto runs = [](const task::Unit& unit) { return static_cast<bool>(unit.forward); };
  if (options.zero.level == 3 && !std::ranges::all_of(source.units.units, runs)) {
    refuse(
        "zero.level 3 has to know where parameters are used: make DataParallel of a "
        "bimetal::Model of units, of a torch::nn::Sequential, or of a module holder whose "
        "forward takes a tensor and gives one");
  }
}

/// Everything but the tensors' shapes that must be the same on all ranks.
std::vector<std::string> facts_of(const char* made_of, const DataParallelOptions& options) {
  const auto& parallel = options.parallel;
  auto facts = std::vector<std::string>{
      fmt::format("DataParallel of a {}", made_of),
      fmt::format("seed = {}", options.seed),
      fmt::format("precision = {}", precision::name_of(options.precision)),
      fmt::format("loss_scale = {}", options.loss_scale),
      fmt::format("limits.norm = {}", options.limits.norm),
      fmt::format("limits.value = {}", options.limits.value),
      fmt::format("bucket_bytes = {}", parallel.bucket_bytes),
      fmt::format("first_bucket_bytes = {}", parallel.first_bucket_bytes),
      fmt::format("compression = {}", static_cast<int>(parallel.compression.compression.scheme))};
  for (auto& fact : api::facts_of(options.zero)) facts.push_back(std::move(fact));
  return facts;
}

std::vector<task::BatchStatistics> statistics_of(const task::Model& model) {
  auto statistics = model.statistics();
  for (auto& one : statistics) {
    one.sums.set_data(one.sums.to(one.mean.options()));  // no buffer, so that it stayed
  }
  return statistics;
}

Source agreed(const api::Session& session, Source source, const DataParallelOptions& options) {
  job::require_same_facts(session.group(), facts_of(source.kind(), options),
                          options.parallel.timeout);
  require_possible(options, source);
  if (options.zero.level > 0) session.require_not_kept("DataParallelOptions::zero");
  precision::require_precision(options.precision, session.device());
  api::require_values(source.units);  // of a task there are none yet
  if (source.task) {
    source.units =
        train::make_seeded_model(*source.task, options.seed, {.device = session.device()});
    task::require_exact(source.units);
    source.units.train();
  } else if (source.owner) {
    source.owner->to(session.device());
  } else {
    source.units.to(session.device());
  }
  return source;
}

}  // namespace

task::Model layers_of(const std::shared_ptr<torch::nn::SequentialImpl>& module) {
  task::Model model;
  auto layer = module->begin();
  for (const auto& child : module->named_children()) {
    model.units.push_back(task::make_unit(
        child.key(), child.value(),
        [run = *layer++](torch::Tensor x) mutable { return run.forward(std::move(x)); }));
  }
  return model;
}

struct DataParallel::Impl {
  Impl(std::shared_ptr<api::Session> s, Source from, DataParallelOptions o)
      : session(std::move(s)),
        options(std::move(o)),
        source(agreed(*session, std::move(from), options)),
        statistics(statistics_of(source.units)),
        stored(source.units, session->group(), session->device(), options.zero, options.parallel),
        own_tensors("DataParallel", stored.model(), stored.optimized()),
        update(stored.store(), options.parallel.timeout,
               api::update_options("DataParallelOptions", options.precision, options.loss_scale,
                                   options.limits)),
        segments(stored.units(),
                 train::recomputed_at_once(options.recompute, source.units.units.size())),
        given(/*inputs_only=*/false),
        compute(source.task ? *source.task : given,
                source.task ? stored.units() : api::hand_on(source.units), session->device(),
                {.micro_batch = options.micro_batch,
                 .precision = options.precision,
                 .recompute = source.task ? options.recompute : "none"}) {
    update.set_statistics(statistics);
    if (session->is_elastic()) session->restore_scale(update);
  }

  using Work = std::function<double(std::int64_t passes)>;  ///< the sum of the losses
  /// `passes`: in how many this rank would compute its share.
  void step(const Work& work, std::int64_t passes, torch::optim::Optimizer& optimizer);
  void step_in_pieces(torch::optim::Optimizer& optimizer);
  void require_usable(torch::optim::Optimizer& optimizer) const;
  progress::RankFigures timed(const Work& work, std::int64_t passes);
  const task::Task& need_task() const;
  progress::Evaluation evaluate(const task::Task& task, const task::Model& model,
                                std::shared_ptr<const task::Dataset> data);

  std::shared_ptr<api::Session> session;
  DataParallelOptions options;
  api::Source source;
  std::vector<task::BatchStatistics> statistics;
  api::StoredModel stored;
  api::OwnTensors own_tensors;
  train::CollectiveUpdate update;
  task::Segments segments;
  api::GivenLoss given;
  train::Compute compute;
  int group_number = session->group_number();
  bool computing = false;  ///< in a function that step() or evaluate() was given
};

DataParallel::DataParallel(std::shared_ptr<const task::Task> task, const Job& job,
                           DataParallelOptions options)
    : impl_(std::make_unique<Impl>(job.session_, Source{.task = std::move(task)},
                                   std::move(options))) {}

DataParallel::DataParallel(task::Model model, const Job& job, DataParallelOptions options)
    : DataParallel(std::move(model), nullptr, job, std::move(options)) {}

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> model, const Job& job,
                           DataParallelOptions options)
    : DataParallel(
          {{task::make_unit("", model, std::function<task::Values(const task::Values&)>())}}, model,
          job, std::move(options)) {}

DataParallel::DataParallel(task::Model units, std::shared_ptr<torch::nn::Module> owner,
                           const Job& job, DataParallelOptions options)
    : impl_(std::make_unique<Impl>(job.session_,
                                   Source{.units = std::move(units), .owner = std::move(owner)},
                                   std::move(options))) {}

DataParallel::~DataParallel() = default;

const task::ModelState& DataParallel::model() const noexcept {
  return impl_->stored.model();
}

std::vector<torch::Tensor> DataParallel::parameters() const {
  return impl_->stored.optimized();
}

torch::Tensor DataParallel::forward(const torch::Tensor& x) const {
  return forward(task::Values{x}).front();
}

task::Values DataParallel::forward(const task::Values& inputs) const {
  for (const auto& unit : impl_->source.units.units) {
    if (unit.forward) continue;
    throw Error(ErrorCode::InvalidArgument,
                "DataParallel::forward does not know the forward of this module: call it yourself, "
                "or make DataParallel of a bimetal::Model of units");
  }
  if (impl_->options.zero.level == 3 && !impl_->computing) {
    throw Error(ErrorCode::InvalidArgument,
                "at zero.level 3 DataParallel::forward belongs into the function that step() or "
                "evaluate() is given: all ranks gather the parameters together");
  }
  return impl_->segments.run(inputs);
}

void DataParallel::step(torch::optim::Optimizer& optimizer) {
  impl_->need_task();
  impl_->step_in_pieces(optimizer);
}

void DataParallel::step(torch::optim::Optimizer& optimizer, const MeanLoss& mean_loss) {
  const api::GivenLoss::Mean mean = [&](const auto&, const Batch& piece) {
    return mean_loss(piece);
  };
  if (impl_->source.task) {
    throw Error(ErrorCode::InvalidArgument,
                "this DataParallel was made of a Task, which has a loss: call step(optimizer)");
  }
  impl_->given.begin(impl_->session->steps(), mean);
  impl_->step_in_pieces(optimizer);
}

void DataParallel::step(const torch::Tensor& mean_loss, torch::optim::Optimizer& optimizer) {
  const auto& options = impl_->options;
  if (options.precision != precision::Precision::float32 || options.micro_batch > 0 ||
      options.zero.level == 3) {
    throw Error(ErrorCode::InvalidArgument,
                "precision, micro_batch and zero.level 3 have to do with the forward pass: give "
                "step() a function, as in step(optimizer, [&](const bimetal::Batch& piece) { "
                "return the mean loss of piece; })");
  }
  impl_->step(
      [&](std::int64_t) {
        const auto weight = impl_->session->steps().own_weight();
        impl_->stored.store().backward_last(mean_loss, weight);
        device::synchronize(impl_->session->device());
        return mean_loss.item<double>() * static_cast<double>(weight);
      },
      1, optimizer);
}

progress::Evaluation DataParallel::evaluate() {
  const auto& task = impl_->need_task();
  return impl_->evaluate(task, impl_->stored.units(), nullptr);
}

progress::Evaluation DataParallel::evaluate(
    std::shared_ptr<const task::Dataset> data,
    const std::function<task::Values(const Batch& batch)>& sums, std::vector<std::string> metrics) {
  if (!data) throw Error(ErrorCode::InvalidArgument, "DataParallel::evaluate needs a data set");
  const api::GivenSums task([&](const auto&, const Batch& batch) { return sums(batch); },
                            std::move(metrics));
  return impl_->evaluate(task, api::hand_on(impl_->source.units), std::move(data));
}

std::filesystem::path DataParallel::save(const std::filesystem::path& dir,
                                         torch::optim::Optimizer& optimizer, std::int64_t keep) {
  auto state = impl_->session->state_after(impl_->update);
  const auto step = state.step;
  auto path = impl_->stored.save({.dir = dir.string(), .keep = keep}, optimizer, std::move(state));
  impl_->session->observer().on_checkpoint(path.string(), step);
  return path;
}

std::optional<StartingPoint> DataParallel::resume(const std::filesystem::path& dir,
                                                  torch::optim::Optimizer& optimizer) {
  impl_->own_tensors.require_all_of(optimizer);
  const auto state = impl_->stored.resume(dir, optimizer);
  if (!state) return std::nullopt;
  return impl_->session->go_on_with(*state, impl_->update);
}

void DataParallel::save_model(const std::filesystem::path& path) {
  impl_->stored.save_model(path);
}

const task::Task& DataParallel::Impl::need_task() const {
  if (source.task) return *source.task;
  throw Error(ErrorCode::InvalidArgument,
              "this DataParallel was not made of a Task: give step() and evaluate() a function");
}

void DataParallel::Impl::step_in_pieces(torch::optim::Optimizer& optimizer) {
  auto& steps = session->steps();
  const auto samples = std::ssize(steps.own_samples());
  const auto work = [&](std::int64_t passes) {
    computing = true;
    stored.store().expect_passes(static_cast<int>(compute.pieces(samples, passes)));
    return compute.run(steps.batch().values, train::backward_into(stored.store()),
                       task::Draws::of(source.task ? options.seed : steps.seed(),
                                       steps.open_plan().samples.epoch, steps.own_samples()),
                       passes);
  };
  step(work, compute.pieces(samples), optimizer);
}

void DataParallel::Impl::require_usable(torch::optim::Optimizer& optimizer) const {
  session->require_of_these_ranks(group_number, "DataParallel");
  session->steps().require_dealt_to(session->group().size());
  session->require_kept(optimizer);
  for (const auto& one : statistics) require_group(one.group, session->steps().sample_group());
  if (source.owner) {
    task::require_exact(*source.owner);
  } else {
    task::require_exact(source.units);
  }
  own_tensors.require_usable(optimizer);
  stored.require_steps_pieces(optimizer);
  stored.place_states(optimizer);
}

void DataParallel::Impl::step(const Work& work, std::int64_t passes,
                              torch::optim::Optimizer& optimizer) {
  auto& steps = session->steps();
  const auto weight = steps.open_plan().samples.weight();
  const api::OwnTensors::AfterStep note(own_tensors);
  progress::RankFigures mine{.batch = steps.own_weight()};
  api::or_end_all(session->group(), [&] {
    require_usable(optimizer);
    const Stopwatch waiting;
    passes = stored.store().agree_on_passes(static_cast<int>(passes));
    update.has_waited(waiting.seconds());
    stored.store().begin_step(weight, update.stages().loss_scale());
    mine = timed(work, passes);
  });
  mine.wishes = session->wishes();
  session->end_step(update.run(steps.step(), mine, optimizer), update);
}

progress::RankFigures DataParallel::Impl::timed(const Work& work, std::int64_t passes) {
  auto& steps = session->steps();
  progress::RankFigures mine{.batch = steps.own_weight()};
  if (mine.batch == 0) return mine;
  const api::AtEnd end([this] { computing = false; });
  mine.loss_sum = work(passes);
  const auto spent = [&] {
    return steps.seconds() - stored.store().wait_seconds() + update.update_seconds();
  };
  device::pause_for_speed(session->speed(), spent());
  mine.compute_seconds = spent();
  return mine;
}

progress::Evaluation DataParallel::Impl::evaluate(const task::Task& task, const task::Model& model,
                                                  std::shared_ptr<const task::Dataset> data) {
  const auto& group = session->group();
  const std::vector<double> equally(static_cast<std::size_t>(group.size()), 0.0);
  const predict::EvaluateOptions how{.device = session->device(),
                                     .speed = session->speed(),
                                     .waited = [this] { return stored.store().wait_seconds(); },
                                     .data = std::move(data),
                                     .computed = [this] { stored.end_passes(); }};
  const api::AtEnd end([this] { computing = false; });
  computing = true;
  const api::EvaluationMode mode(source.units);
  progress::Evaluation result;
  api::or_end_all(group, [&] {
    stored.begin_passes();
    result = predict::evaluate(task, model, group, equally, how);
  });
  session->tell(result);
  return result;
}

}  // namespace bimetal
