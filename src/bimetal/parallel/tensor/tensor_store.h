#pragma once
// Parameters that are in parts on several tensor ranks, and on as many replicas of these as there
// are. It adds what a step needs to the replicas' own store.

#include <cstdint>
#include <memory>
#include <vector>

#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/tensor/tensor_model.h"

namespace bimetal::parallel::tensor {

/// Its group() is of the replicas: the ranks that have the same part, which is what samples are
/// dealt out to. Every rank of all replicas makes the same calls.
class TensorStore final : public ParameterStore {
 public:
  /// `replicas`: where model.model() lives; in shards, model.kept_whole() is whole all the time.
  TensorStore(std::shared_ptr<ParameterStore> replicas, std::shared_ptr<const TensorModel> model);

  int agree_on_passes(int own) override { return replicas_->agree_on_passes(own); }
  void begin_step(std::int64_t weight, double scale = 1) override;
  void backward(const torch::Tensor& loss, std::int64_t part = 1) override;
  void backward_last(const torch::Tensor& loss, std::int64_t part = 1) override;
  void run_pass(const std::function<void()>& backward, bool last) override;
  void expect_passes(int count) override { replicas_->expect_passes(count); }
  void finish_passes() override { replicas_->finish_passes(); }
  void begin_forwards() override { replicas_->begin_forwards(); }
  void end_forwards() override { replicas_->end_forwards(); }
  double loss_factor() const override { return replicas_->loss_factor(); }
  /// Sums over the tensor ranks, too, where each has the gradients of its positions of what is
  /// kept whole.
  void finish_step() override;
  /// What is kept whole becomes what rank 0 has made of it: devices of different kinds round
  /// differently, and would drift apart.
  void after_update() override;

  bool in_shards() const noexcept override { return replicas_->in_shards(); }
  bool trains(const torch::Tensor& parameter) const override {
    return replicas_->trains(parameter);
  }
  torch::Tensor whole_of(const torch::Tensor& parameter) const override {
    return replicas_->whole_of(parameter);
  }
  /// Of what is kept whole rank 0 alone.
  bool counts(const torch::Tensor& parameter) const override;
  progress::RankFigures as_one(const progress::RankFigures& mine) override;
  /// A rank that stopped in a pass leaves the others waiting for its part.
  bool can_repeat() const noexcept override { return false; }
  bool updates_in_backward() const noexcept override { return replicas_->updates_in_backward(); }

  void broadcast_buffers(int root) override;
  std::vector<comm::NamedValues> error_feedback() override;
  bool set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps) override;
  /// For other replicas: what units wait for each other is a part of what a replica computes.
  double wait_seconds() const noexcept override;
  /// Seconds of this step, so far, in which units waited for sums, and for the others in them.
  double sum_seconds() const noexcept;
  double communicate_seconds() const noexcept override;
  const comm::Group& group() const noexcept override { return replicas_->group(); }

 private:
  void sum_gradients(std::vector<torch::Tensor>& parameters);

  std::shared_ptr<ParameterStore> replicas_;
  std::shared_ptr<const TensorModel> model_;
  comm::Group group_;  ///< of the tensor ranks, beside that of their units' sums
  progress::FigureExchange figures_;
  double seconds_before_ = 0;   ///< of the steps before this one
  double summing_seconds_ = 0;  ///< of this one, outside of units
};

}  // namespace bimetal::parallel::tensor
