#pragma once
// The use that parameter servers make of an optimizer beyond stepping it. In async an update is a
// part of a step, and workers do better with the parameters expected for the time when their
// gradients arrive. docs/parameter_server.md, "Consistency".

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

namespace bimetal::optim {

/// For optimizers with a velocity that are not libtorch's own.
class Velocity {
 public:
  virtual ~Velocity() = default;
  /// The steps from now on are that part of one: 0 < part ≤ 1.
  virtual void set_part(double part) = 0;
  /// The amount that a whole step would subtract from `parameter` if its gradient kept the velocity
  /// as it is; undefined before the parameter's first step.
  virtual torch::Tensor velocity_of(const torch::Tensor& parameter) const = 0;
};

/// Steps with a learning rate of `rate_scale` times the optimizer's own. `part`: the share of a
/// step's samples that the gradients are the mean of.
///
/// The learning rate of a part is that part of a step's (the linear scaling rule, Goyal et al.,
/// 2017, section 2.1). Momentum decays by m^part instead of m, and the gradient enters the velocity
/// with (1 − m^part) / (1 − m) instead of 1: any parts that make up a step leave the velocity that
/// the whole step would, given the same gradients, and a sample weighs alike in large and small
/// parts. With momentum left alone all parts' gradients weigh the same, however few their samples.
/// For libtorch's SGD, and optimizers that have a Velocity. For others it scales the learning rate
/// alone.
void step_by_part(torch::optim::Optimizer& optimizer, double rate_scale, double part);

/// Predicts `parameter` as it will be `steps` steps later, by its velocity: linear weight
/// prediction (Kosson et al., "Pipelined Backpropagation at Scale", MLSys 2021, section 3.2; for
/// Adam, Guan et al., "XPipe", 2019, section 3.2). `values`, of the parameter's shape and with its
/// values, becomes the prediction. Does nothing if there is no velocity: SGD without momentum,
/// LAMB, before a first step.
void look_ahead(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter, double steps,
                double rate_scale, torch::Tensor& values);

}  // namespace bimetal::optim
