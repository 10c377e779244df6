#pragma once
// Data parallelism in which no rank keeps all of a model's training state. Optimizer states (level
// 1), gradients (level 2) and parameters (level 3) are cut into shards, one per rank. A shard is as
// large as its rank can hold, whatever its share of the samples (ZeRO: Rajbhandari et al., SC
// 2020). docs/zero.md.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/c10d/island.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/shard/flat_plan.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::shard {

/// Passes that somebody else runs, by run_pass() alone, as many as expect_passes() has been told: a
/// stage of a pipeline.
struct StagePasses {
  /// Parameters whose gradients others add to between the last pass and finish_step(). They are
  /// whole until then.
  std::vector<torch::Tensor> late = {};
  /// How long a pass waits for sums of those before it (gradient_shards.h).
  std::chrono::milliseconds patience{std::chrono::seconds(5)};
};

struct ShardedModelOptions {
  int level = 1;                       ///< 1 to 3
  std::vector<double> weights;         ///< of each rank's shard; the same on every rank
  std::size_t flat_bytes = 25u << 20;  ///< levels 1 and 2: about so much travels at once
  Kept kept = Kept::OnDevice;
  std::filesystem::path folder = {};  ///< OnDisk: the file's, which goes with this process
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  /// Level 3: the parameters to be cut up are hollow (hollow_out), and the pieces have any values,
  /// for the caller to fill; after_update() is due then.
  bool hollow = false;
  /// The same on every rank, and `half` only where all of them compute forward under autocast in
  /// that type. Levels 1 and 2 take it where there are neither copies nor a stage, and nothing
  /// else of it.
  WholeForm form = {};
  /// Level 3: these are whole all the time, too, whatever their size.
  std::vector<torch::Tensor> whole = {};
  /// Each shard is kept by a second rank, too (shard_copies.h), among pieces(): stepped by the same
  /// gradients it stays the same. The same on every rank; with Kept::OnDevice.
  bool copies = false;
  /// Without it run_pass() is for level 1.
  std::optional<StagePasses> stage = {};
  /// Gradients and parameters go from card to card where it gives an island whose ranks are
  /// in_order(). The same on every rank; empty: through the host.
  c10d::FormIsland form_island = {};
};

/// Part of a trained parameter that this rank keeps and steps: a leaf of one dimension whose grad()
/// finish_step() sets.
struct Piece {
  std::string parameter;            ///< its name
  std::vector<std::int64_t> shape;  ///< of the whole parameter
  Range range;
  torch::Tensor tensor;
  bool copy = false;  ///< of what another rank keeps: ShardedModelOptions::copies
};

/// Level 1 sums gradients with the step's last micro-batch alone. Levels 2 and 3 sum those of each
/// micro-batch, so that no rank ever holds all of them. They do so as often as the rank with the
/// most pieces needs, and agree on that piece by piece. For stages' passes they agree once for a
/// step. Level 3 gathers parameters by unit; those of a stage once for a step, from its begin to
/// its last pass.
///
/// Use from one thread.
class ShardedModel final : public ParameterStore {
 public:
  /// Verifies that all ranks hold the same parameters and buffers, copies rank 0's to all, and cuts
  /// them up. Parameters become views of flat tensors; at level 3 their memory goes, so that only
  /// model() may use them from then on. Collective. Errors: those of check_same_on_all_ranks,
  /// trained_parameters, plan_flats and, on disk, StateFile.
  ShardedModel(const task::Model& model, comm::Group group, ShardedModelOptions options);
  ~ShardedModel() override;

  /// The model to compute with: the same units, whose parameters are there when they run. Outside
  /// of a step, at level 3, a pass over it has no backward, and end_passes() is due after the last
  /// one.
  const task::Model& model() const noexcept;

  /// The parameters that are cut up, whole, in the same order on every rank. At level 3 their
  /// values are not there, and those gathered in another type have it.
  const std::vector<task::NamedTensor>& trained() const noexcept;

  /// For an optimizer that works element by element.
  const std::vector<Piece>& pieces() const noexcept;

  /// Before passes over model() outside of steps: levels 1 and 2 bring parameters that are whole in
  /// half in their own type, and at level 3 a stage's parameters are there from now on. Collective.
  void begin_passes();
  /// Takes part in the passes outside of a step that other ranks still make, collective; or ends
  /// what begin_passes() has begun, by itself.
  void end_passes();

  /// Puts together the ranks' parts of something that is laid out as the pieces (their values, or a
  /// state of the optimizer): a tensor per trained parameter, in its shape and on the CPU, on rank
  /// `root`, or on every one; empty elsewhere. `part`: gives a piece's part, of its size.
  /// Collective.
  static constexpr int kEveryRank = -1;
  std::vector<task::NamedTensor> gather(
      const std::function<torch::Tensor(const Piece& piece)>& part, int root) const;

  /// Kept::OnDisk: gives back the memory of those that have been looked at.
  void let_go_of_kept() const noexcept;

  /// Kept::OnDisk: the traffic of this rank's parts. Bytes that passes have gathered count as read.
  /// Bytes that the optimizer has told of by updated() count as written: the system brings them to
  /// the disk by itself, without a measured time.
  std::optional<optim::DiskTraffic> disk_traffic() const;

  /// Bytes of parameters that each rank keeps.
  std::vector<std::int64_t> shard_bytes() const;

  /// Level 3, before the first step and on all ranks alike: a rank's part of a flat tensor is
  /// updated as soon as its gradients are summed in a step's last pass. The gradients are then
  /// freed, so that no rank ever has the gradients of its whole part. `update` steps the pieces
  /// that have gradients: those of one flat tensor, each once in a step. It is called within the
  /// last backward. Expects expect_passes(); a step without it has its gradients with
  /// finish_step(), as usual. Steps cannot be repeated then. Error(Unsupported) at other levels,
  /// with copies and for stages.
  void update_in_backward(std::function<void()> update);

  int agree_on_passes(int own) override;
  void expect_passes(int count) override;
  /// Told by an optimizer of each of pieces() that it has updated: sending it to all ranks may
  /// begin while the optimizer goes on. after_update() is due all the same.
  void updated(const torch::Tensor& piece);
  /// The place in the host's memory that has the piece's whole in bfloat16: the optimizer that
  /// tells of it has written it there, too. Otherwise undefined.
  torch::Tensor bfloat16_of(const torch::Tensor& piece) const;
  void after_update() override;
  void whole_changed() override;
  /// At levels 1 and 2 the model's parameters are what pieces are copied to, and at level 3 they
  /// are not there: pieces alone are trained. The copy of another rank's does not count.
  TensorFacts facts_of(const torch::Tensor& tensor) const override;
  /// The rank of which a copy is here; -1: none.
  int copy_of() const noexcept;

 private:
  void begin() override;
  void pass(const std::function<void()>& backward, bool last) override;
  void finish(const std::function<void()>& before_sums,
              const std::function<void()>& when_sent) override;
  const ExchangeSpan& times() const noexcept override;

  friend class HookedModel;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Lets an optimizer of the model's pieces tell it of updated pieces, and write the bfloat16 copies
/// in the same pass over memory. Does nothing if it is no optim::MergedUpdate.
void follow_update(const std::shared_ptr<ShardedModel>& model, torch::optim::Optimizer& optimizer);

}  // namespace bimetal::parallel::shard
