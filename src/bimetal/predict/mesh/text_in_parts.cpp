
#include <torch/csrc/api/include/torch/types.h>

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/parallel/pipeline/runner.h"
#include "bimetal/parallel/schedule/deal.h"
#include "bimetal/parallel/tensor_buffer.h"
#include "bimetal/predict/mesh/model_in_parts.h"

namespace bimetal::predict {
namespace {

class InParts final : public Foretelling {
 public:
  InParts(const parallel::Mesh& mesh, parallel::ModelPart part, const TextOptions& options)
      : mesh_(mesh),
        part_(std::move(part)),
        options_(options),
        world_(mesh.world()),
        pass_(mesh.widths(), std::array<std::int64_t, 1>{1}),
        runner_(mesh,
                {.device = options.device, .speed = options.speed, .timeout = options.timeout}) {}

  torch::Tensor logits(const torch::Tensor& tokens) override {
    torch::Tensor last;
    const auto work = forward_alone(
        part_.stage, [&](int /*one*/) { return task::Values{tokens.to(options_.device)}; });
    runner_.run_forward(pass_, work, [&](int /*one*/, const task::Values& outputs) {
      last = outputs.at(0).select(1, -1).squeeze(0);
    });
    if (!last.defined()) return last;
    const auto whole = of_all_parts(last);
    return world_.rank() == who_draws() ? whole : torch::Tensor();
  }

  /// Stages without a block have nothing to remember: the others speak for them, once.
  bool remembers(const task::Past& past) override {
    if (remembers_) return *remembers_;
    std::array<std::int64_t, 1> any = {past.remembers() ? 1 : 0};
    world_.all_reduce(comm::buffer(std::span(any)), comm::ReduceOp::max, soon()).wait();
    remembers_ = any.front() > 0;
    return *remembers_;
  }

  std::int64_t agree(std::optional<std::int64_t> drawn) override {
    std::array<std::int64_t, 1> token = {drawn.value_or(-1)};
    world_.broadcast(comm::buffer(std::span(token)), who_draws(), soon()).wait();
    return token.front();
  }

 private:
  Deadline soon() const { return Deadline::after(options_.timeout); }
  int who_draws() const {
    return rank_at(mesh_.shape(), {mesh_.shape().stages - 1, /*replica=*/0, /*tensor=*/0});
  }

  /// Of the logits of the tokens that are here those of the whole vocabulary.
  torch::Tensor of_all_parts(const torch::Tensor& here) const {
    const auto ranks = part_.tensor_ranks();
    if (!ranks || here.numel() == options_.vocabulary) return here;
    std::vector<std::size_t> counts;
    for (int rank = 0; rank < ranks->group().size(); ++rank) {
      counts.push_back(static_cast<std::size_t>(ranks->part(options_.vocabulary, rank).count));
    }
    const auto own = here.to(torch::kCPU).contiguous();
    const auto all = torch::empty({options_.vocabulary}, own.options());
    auto group = ranks->group();
    group.all_gather(parallel::tensor_buffer(own), parallel::tensor_buffer(all), counts, soon())
        .wait();
    return all;
  }

  const parallel::Mesh& mesh_;
  const parallel::ModelPart part_;
  const TextOptions options_;
  comm::Group world_;
  const parallel::schedule::Deal pass_;
  parallel::pipeline::Runner runner_;
  std::optional<bool> remembers_;
};

}  // namespace

std::shared_ptr<Foretelling> foretold_in_parts(const parallel::Mesh& mesh, parallel::ModelPart part,
                                               const TextOptions& options) {
  return std::make_shared<InParts>(mesh, std::move(part), options);
}

}  // namespace bimetal::predict
