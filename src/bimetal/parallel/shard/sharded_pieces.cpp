// The parts that a rank keeps of a ShardedModel's parameters: its own shard, and the copy of
// another's.
//
// The parameters that a ShardedModel has whole between steps, too: how the ranks' updates renew
// them, and in which type they are there.

#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/optim/fused.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/shard/shard_copies.h"
#include "bimetal/parallel/shard/sharded_model_impl.h"

namespace bimetal::parallel::shard {

void ShardedModel::Impl::make_pieces() {
  add_pieces(group.rank(), /*copy=*/false);
  if (!options.copies) return;
  copies.emplace(plans, agreements, options.timeout);
  make_copied();
  if (copies->of() >= 0) add_pieces(copies->of(), /*copy=*/true);
}

/// Below level 3 all parameters are here in any case. Others begin as the shards that they are of,
/// unless all are hollow.
void ShardedModel::Impl::make_copied() {
  const torch::NoGradGuard no_grad;
  const int of = copies->of();
  std::vector<torch::Tensor> own;
  for (std::size_t flat = 0; flat < plans.size(); ++flat) {
    own.push_back(flats[flat].own());
    if (of < 0) continue;
    const auto begin = plans[flat].begin_of(of);
    const auto count = static_cast<std::int64_t>(plans[flat].counts[static_cast<std::size_t>(of)]);
    copied.push_back(options.level < 3 ? flats[flat].whole().narrow(0, begin, count)
                                       : torch::empty({count}, own.back().options()));
  }
  if (options.level < 3 || options.hollow) return;
  const auto values = copies->exchange(own);
  for (std::size_t flat = 0; flat < copied.size(); ++flat) copied[flat].copy_(values[flat]);
}

void ShardedModel::Impl::add_pieces(int rank, bool copy) {
  for (std::size_t flat = 0; flat < plans.size(); ++flat) {
    const auto begin = plans[flat].begin_of(rank);
    for (const auto& slot : plans[flat].slots) {
      const auto range = kept_of(plans[flat], slot, rank);
      if (range.count == 0) continue;
      const auto& [name, tensor] = trained[slot.parameter];
      const auto place = slot.offset + range.offset - begin;
      pieces.push_back({.parameter = name,
                        .shape = tensor.sizes().vec(),
                        .range = range,
                        .tensor = kept_of_flat(flat, copy).narrow(0, place, range.count).detach(),
                        .copy = copy});
      pieces.back().tensor.set_requires_grad(true);
      piece_of.emplace(pieces.back().tensor.unsafeGetTensorImpl(), pieces.size() - 1);
      parameter_of.push_back(slot.parameter);
      flat_of.push_back(flat);
    }
  }
}

const torch::Tensor& ShardedModel::Impl::kept_of_flat(std::size_t flat, bool copy) const {
  return copy ? copied[flat] : flats[flat].own();
}

/// A parameter that no rank has used keeps an undefined gradient, as on one device.
void ShardedModel::Impl::agree_on_used() {
  std::vector<std::int32_t> used(gradients->used().begin(), gradients->used().end());
  agree(used);
  const auto copied_sums =
      copies ? copies->exchange(gradients->sums()) : std::vector<torch::Tensor>();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& sum = pieces[i].copy ? copied_sums[flat_of[i]] : gradients->sums()[flat_of[i]];
    set_gradient(i, used[parameter_of[i]] != 0 ? sum : torch::Tensor());
  }
}

/// `sum`: that of its flat tensor's gradients; undefined: it has none.
void ShardedModel::Impl::set_gradient(std::size_t index, const torch::Tensor& sum) {
  auto& piece = pieces[index];
  if (!sum.defined()) {
    piece.tensor.mutable_grad() = torch::Tensor();
    return;
  }
  const auto& kept = kept_of_flat(flat_of[index], piece.copy);
  const auto place = piece.tensor.storage_offset() - kept.storage_offset();
  piece.tensor.mutable_grad() = sum.narrow(0, place, piece.range.count).detach();
}

const std::vector<Piece>& ShardedModel::pieces() const noexcept {
  return impl_->pieces;
}

TensorFacts ShardedModel::facts_of(const torch::Tensor& tensor) const {
  const auto found = impl_->piece_of.find(tensor.unsafeGetTensorImpl());
  if (found == impl_->piece_of.end()) return {.whole = tensor};
  return {.trained = true,
          .whole = impl_->trained[impl_->parameter_of[found->second]].tensor,
          .counts = !impl_->pieces[found->second].copy};
}

int ShardedModel::copy_of() const noexcept {
  return impl_->copies ? impl_->copies->of() : -1;
}

std::optional<optim::DiskTraffic> ShardedModel::disk_traffic() const {
  if (!impl_->kept_file) return std::nullopt;
  return optim::DiskTraffic{
      .kept_bytes = impl_->kept_file->bytes(),
      .read = impl_->kept_file->brought(),
      .written = {.bytes = impl_->stepped_bytes, .seconds = 0},
      .wait_seconds = impl_->gathers ? impl_->gathers->disk_wait_seconds() : 0};
}

std::vector<task::NamedTensor> ShardedModel::gather(
    const std::function<torch::Tensor(const Piece& piece)>& part, int root) const {
  const torch::NoGradGuard no_grad;
  const bool here = root == kEveryRank || impl_->group.rank() == root;
  std::vector<task::NamedTensor> gathered;
  for (std::size_t i = 0; i < impl_->trained.size() && here; ++i) {
    const auto& [name, tensor] = impl_->trained[i];
    gathered.push_back({name, torch::empty(tensor.sizes(), impl_->types[i])});
  }
  for (std::size_t flat = 0; flat < impl_->plans.size(); ++flat) {
    const auto& plan = impl_->plans[flat];
    const auto& kept = impl_->flats[flat].own();
    const auto own = torch::zeros(kept.sizes(), kept.scalar_type());
    for (std::size_t i = 0; i < impl_->pieces.size(); ++i) {
      const auto& piece = impl_->pieces[i];
      if (impl_->flat_of[i] != flat || piece.copy) continue;
      const auto place = piece.tensor.storage_offset() - kept.storage_offset();
      const auto values = part(piece);
      if (values.defined()) own.narrow(0, place, piece.range.count).copy_(values);
    }
    const auto whole = torch::empty({plan.count}, plan.dtype);
    impl_->flats[flat].let_go_of_own();
    gather_parts(impl_->gathering, own, whole, plan.counts)
        .begin(Deadline::after(impl_->options.timeout))
        .wait();
    for (const auto& slot : plan.slots) {
      if (!here) break;
      gathered[slot.parameter].tensor.view(-1).copy_(whole.narrow(0, slot.offset, slot.count));
    }
  }
  return gathered;
}

void ShardedModel::Impl::make_renewal() {
  std::vector<WholeRenewal::Flat> renewed;
  for (std::size_t flat = 0; flat < plans.size(); ++flat) {
    if (options.level == 3 && !plans[flat].resident) continue;
    renewed.push_back({.index = flat, .pieces = 0});
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (flat_of[i] != flat || pieces[i].copy) continue;
      ++renewed.back().pieces;
      updated[pieces[i].tensor.unsafeGetTensorImpl()] = flat;
    }
  }
  renewal.emplace(std::move(renewed), plans, flats, gathering, span, options.timeout);
}

/// Gathered from what ranks keep, which is more than the whole has.
void ShardedModel::Impl::show_exact() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].gathered == plans[i].dtype) continue;
    const auto memory =
        torch::empty({plans[i].count}, flats[i].whole().options().dtype(plans[i].dtype));
    gather_parts(gathering, flats[i].own(), memory, plans[i].counts)
        .begin(Deadline::after(options.timeout))
        .wait();
    flats[i].show(memory);
  }
  exact = true;
}

void ShardedModel::Impl::show_whole() {
  if (!std::exchange(exact, false)) return;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].gathered != plans[i].dtype) flats[i].show(flats[i].whole());
  }
}

/// Gradients of parameters that are whole in half come in that type; those of several passes are
/// added up in the type that ranks keep, as autocast's copies have it.
void ShardedModel::Impl::widen_gradients() {
  for (std::size_t i = 0; i < trained.size(); ++i) {
    auto& gradient = trained[i].tensor.mutable_grad();
    if (gradient.defined() && gradient.scalar_type() != types[i]) gradient = gradient.to(types[i]);
  }
}

void ShardedModel::updated(const torch::Tensor& piece) {
  impl_->stepped_bytes += piece.nbytes();
  // In backward others still gather.
  if (impl_->in_step) return;
  let_go_of_kept();
  // If a rank may be lost in the middle, the others update without it (copies).
  if (impl_->copies) return;
  const auto found = impl_->updated.find(piece.unsafeGetTensorImpl());
  if (found != impl_->updated.end()) impl_->renewal->updated(found->second);
}

torch::Tensor ShardedModel::bfloat16_of(const torch::Tensor& piece) const {
  const auto found = impl_->updated.find(piece.unsafeGetTensorImpl());
  if (found == impl_->updated.end()) return {};
  const auto& flat = impl_->flats[found->second];
  if (!flat.is_copied_to_bfloat16()) return {};
  const auto place = piece.storage_offset() - flat.own().storage_offset();
  return flat.own_in_whole().narrow(0, place, piece.numel());
}

void ShardedModel::after_update() {
  impl_->renewal->complete();
  let_go_of_kept();
}

void ShardedModel::whole_changed() {
  for (std::size_t i = 0; i < impl_->plans.size(); ++i) {
    if (impl_->gathers && !impl_->plans[i].resident) continue;
    impl_->flats[i].take_own_from_whole();
    impl_->flats[i].let_go_of_own();
  }
}

void follow_update(const std::shared_ptr<ShardedModel>& model, torch::optim::Optimizer& optimizer) {
  auto* const merged = dynamic_cast<optim::MergedUpdate*>(&optimizer);
  if (merged == nullptr) return;
  merged->set_after_parameter([model](const torch::Tensor& piece) { model->updated(piece); });
  merged->set_bfloat16([model](const torch::Tensor& piece) { return model->bfloat16_of(piece); });
}

// Backward passes of a ShardedModel that a pipeline's stage runs.
//
// In the middle of their schedules stages must wait for each other only as the schedules say: the
// replicas of a stage may come to their passes at unlike places of a step, and have unlike numbers
// of them. So sums are begun, in the order of passes, and waited for at the step's end; the ranks
// agree on their number beside the first of them, and a rank that has fewer adds zeros. Nor may
// parameters come and go with the passes at level 3. All are gathered when a step begins, and freed
// behind its last pass.
//
// Updates of a ShardedModel in the middle of backward: each flat tensor is updated once its
// gradients are summed, which are then freed (Lv et al., "Full Parameter Fine-tuning for Large
// Language Models with Limited Resources", ACL 2024, section 3.2: LOMO, there for plain SGD).
//
// A flat tensor's sum is there when all ranks have sent its gradients, behind which none of them
// needs its old values any more: each has gathered it for this pass before it could compute these,
// and a rank's own part is separate from the gathered whole or, for parameters that stay whole, is
// sent last of all. The ranks agree at the start of each pass whether it is the step's last.

task::Model ShardedModel::Impl::waiting() {
  task::Model waits = model;
  for (std::size_t unit = 0; unit < waits.units.size(); ++unit) {
    auto& forward = waits.units[unit].forward;
    forward = [this, unit, then = std::move(forward)](const task::Values& inputs) {
      gathers->before_forward(unit);
      return then(inputs);
    };
  }
  return waits;
}

void ShardedModel::Impl::hold_parameters(bool wide) {
  if (gathers) gathers->begin_holding(wide);
}

void ShardedModel::Impl::let_go_of_parameters() {
  if (gathers) gathers->end_pass();
}

void ShardedModel::expect_passes(int count) {
  if (impl_->in_stage()) return impl_->expect_stage_passes(count);
  impl_->expected = count;
}

void ShardedModel::Impl::expect_stage_passes(int count) {
  most_passes = std::make_shared<std::vector<std::int32_t>>(1, count);
  stage_agreement = agreements.all_reduce(comm::buffer(std::span(*most_passes)),
                                          comm::ReduceOp::max, Deadline::after(options.timeout));
  // A thread that unwinds in the middle of a step leaves it under way.
  stage_agreement->on_done([kept = most_passes](const std::exception_ptr&) {});
}

void ShardedModel::Impl::run_stage_pass(const std::function<void()>& backward) {
  if (!backward) return;
  ++stage_passes;
  in_pass = true;
  gradients->during(backward);
  gradients->end_pass();
  in_pass = false;
}

/// Also where this rank has stopped in the middle of a pass, or before one.
void ShardedModel::Impl::join_other_passes() {
  if (in_pass) gradients->end_pass();
  in_pass = false;
  let_go_of_parameters();
  if (!stage_agreement) expect_stage_passes(0);
  marked_wait(
      span.waited, [] { return "what the other ranks do next"; },
      [&] { std::exchange(stage_agreement, {})->wait(); });
  gradients->end_others(most_passes->front() - stage_passes);
}

void ShardedModel::update_in_backward(std::function<void()> update) {
  if (impl_->options.level < 3 || impl_->options.copies || impl_->options.stage) {
    throw Error(ErrorCode::Unsupported,
                "updates in backward are of shards at level 3, without copies and stages");
  }
  impl_->update = std::move(update);
  traits_.updates_in_backward = true;
}

std::int32_t ShardedModel::Impl::passes_to_come(bool here) const {
  constexpr std::int32_t kMore = 2;  // for all that is known
  if (!here) return 0;
  return expected > 0 ? expected : kMore;
}

void ShardedModel::Impl::count_pass(std::int32_t to_come) {
  if (in_last_pass) {
    throw Error(ErrorCode::InvalidArgument,
                "a pass follows the step's last one, as expect_passes() had it, whose gradients "
                "have been used for updates");
  }
  if (expected > 0) --expected;
  if (to_come > 1) return;
  in_last_pass = true;
  gradients->hand_over(
      [this](std::size_t flat, const torch::Tensor& sum) { update_flat(flat, sum); });
}

/// A parameter that no rank has used is left alone, as on one device.
void ShardedModel::Impl::update_flat(std::size_t flat, const torch::Tensor& sum) {
  bool any = false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (flat_of[i] != flat || !gradients->used()[parameter_of[i]]) continue;
    set_gradient(i, sum);
    any = true;
  }
  if (any) update();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (flat_of[i] == flat) set_gradient(i, {});
  }
  flats[flat].let_go_of_own();
}

}  // namespace bimetal::parallel::shard
