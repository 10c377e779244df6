#include "bimetal/train/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/data/prefetch.h"
#include "bimetal/device/graph.h"
#include "bimetal/job/worker_spec.h"

namespace bimetal::train {

Run::Run(const job::JobConfig& of, job::JobConfig settled, const TrainerOptions& how,
         progress::Observer& to, const device::Place& where,
         std::shared_ptr<const task::JobTask> data)
    : asked(of),
      job(std::move(settled)),
      options(how),
      observer(to),
      place(where),
      task(std::move(data)),
      sampler(data::make_sampler(*task->training(), job.train.seed,
                                 std::max<std::int64_t>(1, job::sample_group(job)))) {
  learnt.saved = options.resume;
}

void Run::begin() {
  auto& state = learnt.state;
  const auto before = std::exchange(state.model, task->description());
  if (journal) return;
  if (const auto other = checkpoint::other_normalisation(before, *state.model)) {
    observer.on_notice(*other);
  }
  if (job.train.graphs && !place.device.is_cpu() && !device::has_graphs(place.device)) {
    observer.on_notice(
        fmt::format("train.graphs: {} has no graphs that this build can use, so that its kernels "
                    "are launched one by one: docs/accelerators.md",
                    place.device.str()));
  }
  planned_steps = checkpoint::planned_steps(job.train, task->training()->size(), state);
  start_journal();
  saved_step = state.step;
  if (const auto text = checkpoint::early_end(job.train, planned_steps)) observer.on_notice(*text);
}

void Run::start_journal() {
  journal.emplace(progress::RunPlan{.epochs = job.train.epochs,
                                    .steps = planned_steps,
                                    .global_batch = batch_weight(),
                                    .counts = task->counts()});
  loss_trend.emplace(learnt.state.step == 0);
}

void Run::lead() {
  if (best) return;
  const auto& dir = job.checkpoint.dir;
  best.emplace(job.checkpoint.keep_best ? dir : "", learnt.state.step);
  if (learnt.state.step == 0 || saved_step != learnt.state.step || dir.empty()) return;
  // The checkpoint that it goes on from may be the one that its last evaluation is of.
  const auto path = checkpoint::checkpoint_path(dir, saved_step);
  if (std::filesystem::is_directory(path)) saved_path = path;
}

data::EpochSampler Run::sampler_here() const {
  auto here = sampler;
  here.seek(learnt.state.position);
  return here;
}

std::chrono::milliseconds Run::timeout() const {
  return milliseconds_of(job.parallel.timeout_s);
}

}  // namespace bimetal::train
