#pragma once
// The ranks' exchange for a step, and when it happens: gradients before the update, in every step,
// and parts of the update that others need after it. Any other exchange (the difference of some
// local steps) belongs here, too.

#include <torch/csrc/api/include/torch/types.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/progress/worker_summary.h"

namespace bimetal::parallel {

/// Sums beside those of a store's replicas, with ranks that have other parts of the same model: of
/// its tensors (tensor/tensor_model.h), or stages that share some (pipeline/stage_model.h). Every
/// call is collective among these ranks, but for the const ones.
class ExtraSums {
 public:
  virtual ~ExtraSums() = default;
  virtual void begin_step() {}
  /// Sum gradients when all passes are over: before or after the replicas have summed them.
  virtual void before_replicas() {}
  virtual void after_replicas() {}
  /// Exchanges parameters that the optimizer has changed.
  virtual void after_update() {}

  /// Whether this rank counts the gradient of `whole`, among those that have the same.
  virtual bool counts(const torch::Tensor& /*whole*/) const { return true; }
  /// The ranks that agree on a step, if each has only its own part of the gradients and speaks for
  /// itself (stages). nullptr: the store's replicas.
  virtual const comm::Group* everyone() const noexcept { return nullptr; }
  /// The figures of a step that ranks which compute one replica together report as one.
  virtual progress::RankFigures as_one(const progress::RankFigures& mine) { return mine; }
  /// Whether the others can go on with a step in whose passes this rank stops.
  virtual bool can_repeat() const noexcept { return true; }

  /// Seconds of this step so far.
  virtual double wait_seconds() const noexcept { return 0; }
  virtual double communicate_seconds() const noexcept { return 0; }
  /// Seconds in which units have waited for each other: a part of a replica's computing time.
  /// Stages time their units themselves.
  virtual double unit_seconds() const noexcept { return 0; }
};

/// A store, whose passes are its own business, and the exchanges of a step around them. A handle:
/// copies mean the same. Use from one thread.
///
///   sync.begin_step(weight, scale);
///   …passes of sync.store()…
///   sync.sum_gradients();
///   …update…
///   sync.spread_update();
class Sync {
 public:
  Sync() = default;
  template <std::derived_from<ParameterStore> Store>
  Sync(std::shared_ptr<Store> store, std::vector<std::shared_ptr<ExtraSums>> extra = {})
      : store_(std::move(store)), extra_(std::move(extra)) {}
  /// `store` must outlive it.
  Sync(ParameterStore& store) : store_(std::shared_ptr<void>(), &store) {}

  ParameterStore& store() const noexcept { return *store_; }

  /// As ParameterStore has it.
  void begin_step(std::int64_t weight, double scale = 1);
  /// As ParameterStore::finish_step(), with all other ranks that have a part in these gradients.
  void sum_gradients(const std::function<void()>& when_sent = {});
  /// As ParameterStore::after_update(), likewise.
  void spread_update();

  /// The ranks that agree on a step.
  const comm::Group& group() const noexcept {
    return everyone() != nullptr ? *everyone() : store_->group();
  }
  /// The figures that other replicas are told of this rank and those that compute a replica with
  /// it. Collective among these.
  progress::RankFigures as_one(const progress::RankFigures& mine) const;
  /// Whether a norm of the gradients is to be added up over group().
  bool in_parts() const noexcept { return store_->in_shards() || everyone() != nullptr; }
  /// Whether this rank adds the gradient of `parameter`, one of its optimizer's, to that norm: if
  /// several ranks have the same one, one does.
  bool counts(const torch::Tensor& parameter) const;
  bool can_repeat() const noexcept;

  /// Seconds of this step so far: waiting for other ranks and the network; between the first
  /// exchange's start and the last one's end; and in units, as ExtraSums has it.
  double wait_seconds() const noexcept;
  double communicate_seconds() const noexcept;
  double unit_seconds() const noexcept;

 private:
  const comm::Group* everyone() const noexcept;

  std::shared_ptr<ParameterStore> store_;
  std::vector<std::shared_ptr<ExtraSums>> extra_;  ///< those of tensors first
};

}  // namespace bimetal::parallel
