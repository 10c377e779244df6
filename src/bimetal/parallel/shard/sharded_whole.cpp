// What a ShardedModel has whole between steps, too: how it is renewed by what ranks update, and in
// which type it is there.

#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <utility>

#include "bimetal/optim/fused.h"
#include "bimetal/parallel/shard/shard_copies.h"
#include "bimetal/parallel/shard/sharded_model_impl.h"

namespace bimetal::parallel::shard {

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

/// Gradients of what is whole in half come in its type; those of several passes are added up in the
/// type that ranks keep, as autocast's copies have it.
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
  // Where a rank may be lost in the midst the others update without it (copies).
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

}  // namespace bimetal::parallel::shard
