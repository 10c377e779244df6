#include "bimetal/parallel/shard/sharded_model.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/parallel/data/gradient_hooks.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/shard/flat_plan.h"
#include "bimetal/parallel/shard/shard_copies.h"
#include "bimetal/parallel/shard/sharded_model_impl.h"
#include "bimetal/parallel/shard/unit_gathers.h"
#include "bimetal/task/task.h"

namespace bimetal::parallel::shard {
namespace {

/// If the parameters are hollow: those that are not trained.
std::vector<torch::Tensor> with_values(const std::vector<task::NamedTensor>& parameters,
                                       bool hollow) {
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : parameters) {
    if (!hollow || !tensor.requires_grad()) tensors.push_back(tensor);
  }
  return tensors;
}

bool is_among(const torch::Tensor& tensor, const std::vector<torch::Tensor>& others) {
  return std::ranges::any_of(others,
                             [&](const torch::Tensor& other) { return other.is_same(tensor); });
}

}  // namespace

ShardedModel::Impl::Impl(const task::Model& whole, comm::Group g, ShardedModelOptions o)
    : group(std::move(g)), options(std::move(o)), model(whole) {
  const task::ModelState state(model);
  broadcast_tensors(with_values(state.parameters, options.hollow), 0, group, options.flat_bytes,
                    options.timeout);
  trained = trained_parameters(state.parameters);
  for (const auto& parameter : trained) types.push_back(parameter.tensor.scalar_type());
  // Gathers, sums and the agreement on passes each have an order of their own.
  agreements = comm::group_of_its_own(group);
  gathering.group = comm::group_of_its_own(group);
  summing.group = comm::group_of_its_own(group);
  find_island();
  make_flats();
  make_pieces();
  make_renewal();
  gradients.emplace(task::tensors_of(trained), plans, summing, span, options.timeout,
                    options.stage ? options.stage->patience : GradientShards::kPatience,
                    most_in_flight());
  if (options.level < 3) return;
  gathers.emplace(needs(), plans, flats, gathering, span, options.timeout);
  model = in_stage() ? waiting() : fenced();
}

/// Parts of ranks that are not numbered island by island would be in pieces.
void ShardedModel::Impl::find_island() {
  if (!options.form_island) return;
  auto island = options.form_island(group);
  if (!island || !island->in_order()) return;
  summing.island = island->beside();
  gathering.island = std::move(island);
}

/// At level 1 all gradients are there before the sums. So a device need not stop for them.
std::size_t ShardedModel::Impl::most_in_flight() const {
  const bool here = trained.empty() || trained.front().tensor.is_cpu();
  return options.level == 1 && !here ? GradientShards::kAnyNumber : GradientShards::kMostInFlight;
}

/// Copies, and passes that somebody else runs, need the whole in the type that ranks keep.
bool ShardedModel::Impl::in_half() const {
  return options.level == 3 || (!options.copies && !options.stage);
}

void ShardedModel::Impl::make_flats() {
  const bool gathers_units = options.level == 3;
  WholeForm form = options.form;
  if (!in_half()) form.half.reset();
  if (!gathers_units) form.keep_below = 0;
  auto places = describe(model, trained, form);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& tensor = trained[i].tensor;
    auto& place = places[i];
    place.late = options.stage && is_among(tensor, options.stage->late);
    // Gradients that ranks add up are of one type, and not all units use it for products alone.
    if (place.late) place.gathered.reset();
    if (!is_among(tensor, options.whole)) continue;
    place.gathered.reset();
    if (!gathers_units) continue;
    place.resident = true;
    place.shared = false;
  }
  plans = plan_flats(places, options.weights, gathers_units ? 0 : options.flat_bytes);
  const auto room = room_of_whole();
  for (auto& plan : plans) {
    plan.unit_name = model.units.at(plan.unit).name;
    std::vector<torch::Tensor> parameters;
    for (const auto& slot : plan.slots) parameters.push_back(trained[slot.parameter].tensor);
    const bool there = !gathers_units && parameters.front().is_cpu();
    flats.emplace_back(plan, parameters, group.rank(), options.hollow,
                       there ? room.take(plan.count, plan.gathered) : torch::Tensor());
  }
  if (options.level == 3) kept_file = keep_apart(flats, options.kept, options.folder);
}

/// For levels 1 and 2, whose parameters are always whole: updated parts are read from there.
GroupRoom ShardedModel::Impl::room_of_whole() {
  if (options.level == 3) return {};
  std::vector<std::size_t> bytes;
  for (const auto& plan : plans) {
    bytes.push_back(static_cast<std::size_t>(plan.count) * c10::elementSize(plan.gathered));
  }
  const bool here = trained.empty() || trained.front().tensor.is_cpu();
  return {gathering.group, GroupRoom::bytes_for(bytes), here};
}

std::vector<std::vector<std::size_t>> ShardedModel::Impl::needs() const {
  const auto places = places_of(trained);
  std::vector<std::size_t> flat_of_parameter(trained.size(), plans.size());
  for (std::size_t flat = 0; flat < plans.size(); ++flat) {
    for (const auto& slot : plans[flat].slots) flat_of_parameter[slot.parameter] = flat;
  }
  std::vector<std::vector<std::size_t>> needs(model.units.size());
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    for (const auto& [name, tensor] : model.units[unit].parameters) {
      const auto found = places.find(tensor.unsafeGetTensorImpl());
      if (found == places.end()) continue;
      const auto flat = flat_of_parameter[found->second];
      if (flat < plans.size() && std::ranges::find(needs[unit], flat) == needs[unit].end()) {
        needs[unit].push_back(flat);
      }
    }
  }
  return needs;
}

task::Model ShardedModel::Impl::fenced() {
  task::Model fences = model;
  for (std::size_t unit = 0; unit < fences.units.size(); ++unit) {
    fences.units[unit] =
        fence(std::move(fences.units[unit]),
              {.before_forward =
                   [this, unit] {
                     if (in_backward)
                       return gathers->before_backward(unit);  // it is computed again
                     if (!in_pass) begin_pass();
                     gathers->before_forward(unit);
                   },
               .after_forward =
                   [this, unit] {
                     if (in_backward) return;
                     gathers->let_go(unit);
                     if (!in_step && unit + 1 == model.units.size()) end_pass();
                   },
               .before_backward = [this, unit] { gathers->before_backward(unit); },
               .after_backward = [this, unit] { gathers->let_go(unit); }});
  }
  return fences;
}

/// For each number the largest of any rank.
void ShardedModel::Impl::agree(std::vector<std::int32_t>& numbers) {
  marked_wait(
      span.waited, [] { return "what the other ranks do next"; },
      [&] {
        agreements
            .all_reduce(comm::buffer(std::span(numbers)), comm::ReduceOp::max,
                        Deadline::after(options.timeout))
            .wait();
      });
}

bool ShardedModel::Impl::any_rank(bool here) {
  std::vector<std::int32_t> passes_of = {here && !in_step ? 1 : 0, here && in_step ? 1 : 0,
                                         passes_to_come(here)};
  agree(passes_of);
  const bool forward = passes_of[0] != 0, both = passes_of[1] != 0;
  if (forward && both) {
    throw Error(ErrorCode::CallMismatch,
                "some ranks compute a pass with a backward while others compute one without: let "
                "all ranks evaluate at the same place of the program, and as often as each other, "
                "or call end_passes() of what shard() has returned after each evaluation");
  }
  if (hooked && !here) in_step = both;
  if (update && both) count_pass(passes_of[2]);
  return forward || both;
}

void ShardedModel::Impl::begin_pass() {
  if (options.level > 1 || hooked) any_rank(true);
  in_pass = true;
  if (gathers) gathers->begin_pass(in_step);
}

/// Level 3 has begun the pass with its forward.
void ShardedModel::Impl::reduce_during(const std::function<void()>& backward) {
  if (!in_pass) begin_pass();
  in_backward = true;
  try {
    gradients->during(backward);
  } catch (...) {
    in_backward = false;
    throw;
  }
  in_backward = false;
  if (options.level > 1) end_pass();
}

/// Also where this rank has stopped in the middle of it.
void ShardedModel::Impl::end_pass() {
  if (!in_pass) return;
  if (gathers) {
    // Others have gone back through the flat tensors behind this one.
    gathers->end_pass([this](std::size_t flat) {
      if (in_step) gradients->complete_from(flat + 1);
    });
  }
  if (in_step) gradients->complete();
  in_pass = false;
}

void ShardedModel::Impl::take_part_in_others() {
  while (any_rank(false)) take_part_in_one();
}

void ShardedModel::Impl::take_part_in_one() {
  in_pass = true;
  if (gathers) gathers->begin_pass(in_step);
  end_pass();
}

ShardedModel::ShardedModel(const task::Model& model, comm::Group group, ShardedModelOptions options)
    : ParameterStore(model, group, options.flat_bytes, options.timeout),
      impl_(std::make_unique<Impl>(model, std::move(group), std::move(options))) {
  traits_ = {.in_shards = true,
             .keeps_copies = impl_->copies && impl_->copies->any(),
             .waits_in_passes = impl_->options.level > 1,
             .takes_passes = impl_->options.level == 1 || impl_->in_stage()};
}

ShardedModel::~ShardedModel() = default;

const task::Model& ShardedModel::model() const noexcept {
  return impl_->model;
}

const std::vector<task::NamedTensor>& ShardedModel::trained() const noexcept {
  return impl_->trained;
}

int ShardedModel::agree_on_passes(int own) {
  if (impl_->options.level < 2 || impl_->in_stage()) return own;
  std::vector<std::int32_t> most = {own};
  impl_->agree(most);
  return most.front();
}

void ShardedModel::begin_passes() {
  if (!impl_->gathers) return impl_->show_exact();
  if (impl_->in_stage()) impl_->hold_parameters(/*wide=*/true);
}

void ShardedModel::end_passes() {
  if (!impl_->gathers) return impl_->show_whole();
  if (impl_->in_stage()) return impl_->let_go_of_parameters();
  impl_->take_part_in_others();
}

void ShardedModel::let_go_of_kept() const noexcept {
  for (const auto& flat : impl_->flats) flat.let_go_of_own();
}

std::vector<std::int64_t> ShardedModel::shard_bytes() const {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(impl_->group.size()));
  for (const auto& plan : impl_->plans) {
    for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
      bytes[rank] += static_cast<std::int64_t>(plan.counts[rank] * c10::elementSize(plan.dtype));
    }
  }
  return bytes;
}

void ShardedModel::begin() {
  impl_->in_step = true;
  for (auto& piece : impl_->pieces) piece.tensor.mutable_grad() = torch::Tensor();
  impl_->gradients->begin();
  impl_->span.begin();
  impl_->stage_passes = 0;
  impl_->expected = 0;
  impl_->in_last_pass = false;
  if (impl_->in_stage()) impl_->hold_parameters(/*wide=*/false);
}

void ShardedModel::pass(const std::function<void()>& backward, bool last) {
  if (impl_->in_stage()) return impl_->run_stage_pass(backward);
  if (last || impl_->options.level > 1) {
    return impl_->reduce_during(backward ? backward : [] {});
  }
  backward();
  impl_->widen_gradients();
}

void ShardedModel::finish(const std::function<void()>& before_sums,
                          const std::function<void()>& when_sent) {
  if (impl_->in_stage()) impl_->join_other_passes();
  before_sums();
  if (impl_->options.level == 1) {
    impl_->gradients->complete(when_sent);
    impl_->in_pass = false;
  } else if (impl_->in_stage()) {
    impl_->gradients->complete_late();
    when_sent();
  } else {
    impl_->end_pass();
    impl_->take_part_in_others();
    when_sent();
  }
  impl_->in_step = false;
  if (!impl_->in_last_pass) impl_->agree_on_used();
}

const ExchangeSpan& ShardedModel::times() const noexcept {
  return impl_->span;
}

}  // namespace bimetal::parallel::shard
