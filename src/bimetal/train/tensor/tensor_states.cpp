#include "bimetal/train/tensor/tensor_states.h"

#include <string>
#include <vector>

#include "bimetal/checkpoint/optimizer_state.h"

namespace bimetal::train {
namespace {

/// Of "<parameter>.exp_avg".
std::string parameter_of(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

}  // namespace

checkpoint::TensorMap part_of_states(const checkpoint::TensorMap& learnt,
                                     const parallel::tensor::TensorModel& model) {
  const int rank = model.ranks()->group().rank();
  checkpoint::TensorMap parts;
  for (const auto& [name, whole] : learnt) {
    parts[name] = model.cuts().part(parameter_of(name), whole, rank);
  }
  return parts;
}

checkpoint::TensorMap gather_states(const parallel::tensor::TensorModel& model,
                                    const torch::optim::Optimizer& of_parts) {
  const auto learnt = checkpoint::optimizer_tensors(of_parts, model.model());
  std::vector<task::NamedTensor> mine;
  for (const auto& [name, part] : learnt) mine.push_back({parameter_of(name), part});
  const auto gathered = model.gather(mine);
  checkpoint::TensorMap all;
  auto whole = gathered.begin();
  for (const auto& [name, part] : learnt) {
    if (whole == gathered.end()) break;  // not the first rank
    all[name] = (whole++)->tensor;
  }
  return all;
}

}  // namespace bimetal::train
