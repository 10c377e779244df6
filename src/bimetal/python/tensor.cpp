
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/c10d/torch_bridge.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/parallel/tensor/group_ranks.h"
#include "bimetal/parallel/tensor/sequence_ranks.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

namespace tensor = parallel::tensor;
constexpr std::size_t kFollowBytes = 25u << 20;

/// The ranks that have a module's tensors in parts, for layers whose forward is Python's.
class PartRanks {
 public:
  PartRanks(const ProcessGroup& process_group, std::vector<double> weights)
      : ranks_(tensor::GroupRanks::make(process_group.group, std::move(weights),
                                        process_group.timeout)) {}

  torch::Tensor sum(const torch::Tensor& x) const { return ranks_->sum(x); }

  /// As GroupRanks::shared() has it, with errors that pass through autograd to Python.
  torch::Tensor shared(const torch::Tensor& x) const {
    return tensor::both_ways(
        x, [](const torch::Tensor& given) { return given; },
        [ranks = ranks_](const torch::Tensor& gradient) {
          return c10d::guarded([&] { return ranks->sum(gradient); });
        });
  }

  /// All columns of `part` [n, columns here]. Each rank's gradient is that of its own columns, and
  /// must be the same on all ranks. Columns are dealt out as positions of sequences are.
  torch::Tensor gathered(const torch::Tensor& part, std::int64_t columns) const {
    const auto here = ranks_->part(columns);
    return tensor::both_ways(
        part,
        [ranks = ranks_, columns](const torch::Tensor& own) {
          return tensor::SequenceRanks(ranks, columns).gathered(own);
        },
        [here](const torch::Tensor& gradient) {
          return gradient.narrow(1, here.first, here.count).contiguous();
        });
  }

  torch::Tensor cross_entropy_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                  std::int64_t vocabulary, std::int64_t ignored) const {
    return ranks_->cross_entropy_sum(logits, targets, vocabulary, ignored);
  }

  void follow_first(const std::vector<torch::Tensor>& tensors) const {
    parallel::broadcast_tensors(tensors, 0, ranks_->group(), kFollowBytes, ranks_->timeout());
  }

 private:
  std::shared_ptr<const tensor::GroupRanks> ranks_;
};

/// The parameter, and task::TensorSplit's dim, grain and segments.
using Split = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>;

std::unique_ptr<tensor::Cuts> make_cuts(const std::vector<task::NamedTensor>& parameters,
                                        const std::vector<Split>& splits,
                                        std::vector<double> weights) {
  task::Unit unit{.name = "the module", .parameters = parameters, .forward = {}};
  for (const auto& [name, dim, grain, segments] : splits) {
    unit.splits.push_back({.parameter = name, .dim = dim, .grain = grain, .segments = segments});
  }
  return std::make_unique<tensor::Cuts>(task::Model{.units = {std::move(unit)}},
                                        std::move(weights));
}

std::pair<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> places(
    const tensor::Cuts& cuts, const std::string& parameter, int rank) {
  const auto found = cuts.places(parameter, rank);
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;
  for (const auto& [first, count] : found.places) parts.emplace_back(first, count);
  return {found.dim, parts};
}

std::vector<std::int64_t> whole_parts(std::int64_t total, const std::vector<double>& weights) {
  return balance::whole_parts(total, weights);
}

}  // namespace

void bind_tensor(Bindings& bindings) {
  bindings.function("whole_parts", whole_parts, Lock::kept);
  Bindings::Class<tensor::Cuts>(bindings, "TensorCuts")
      .made_by(make_cuts)
      .method("has", &tensor::Cuts::has, Lock::kept)
      .method("part", &tensor::Cuts::part, Lock::kept)
      .method("places", places, Lock::kept);
  Bindings::Class<PartRanks>(bindings, "PartRanks")
      .made_of<const ProcessGroup&, std::vector<double>>()
      .method("shared", &PartRanks::shared)
      .method("sum", &PartRanks::sum)
      .method("gathered", &PartRanks::gathered)
      .method("cross_entropy_sum", &PartRanks::cross_entropy_sum)
      .method("follow_first", &PartRanks::follow_first);
}

}  // namespace bimetal::python
