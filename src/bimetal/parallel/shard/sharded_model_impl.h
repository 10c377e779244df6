#pragma once
// The parts of a ShardedModel, for the files that implement it.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/shard/gradient_shards.h"
#include "bimetal/parallel/shard/shard_copies.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/parallel/shard/unit_gathers.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::shard {

struct ShardedModel::Impl {
  Impl(const task::Model& whole, comm::Group g, ShardedModelOptions o);

  void find_island();
  bool in_half() const;
  std::size_t most_in_flight() const;
  void make_flats();
  GroupRoom room_of_whole();
  void make_pieces();
  void make_copied();
  void add_pieces(int rank, bool copy);
  const torch::Tensor& kept_of_flat(std::size_t flat, bool copy) const;
  std::vector<std::vector<std::size_t>> needs() const;
  task::Model fenced();
  /// For a stage: units that only wait for their parameters.
  task::Model waiting();
  void agree(std::vector<std::int32_t>& numbers);
  /// Whether any rank begins a pass; `here`: this one does, with a backward if in_step.
  bool any_rank(bool here);
  void begin_pass();
  void reduce_during(const std::function<void()>& backward);
  void end_pass();
  /// For passes whose sums are sent one by one, as stages' are from level 2 on.
  bool in_stage() const { return options.stage && options.level >= 2; }
  void hold_parameters(bool wide);
  void let_go_of_parameters();
  void run_stage_pass(const std::function<void()>& backward);
  void expect_stage_passes(int count);
  void join_other_passes();
  void take_part_in_others();
  void take_part_in_one();
  void agree_on_used();
  void set_gradient(std::size_t piece, const torch::Tensor& sum);
  /// The number of passes that this rank has yet to end. It says so when a pass begins, with a
  /// backward of its own (`here`) or without.
  std::int32_t passes_to_come(bool here) const;
  /// One that begins; `to_come`: the most that any rank has said.
  void count_pass(std::int32_t to_come);
  void update_flat(std::size_t flat, const torch::Tensor& sum);
  void make_renewal();
  void show_exact();
  void show_whole();
  void widen_gradients();

  comm::Group group;
  ShardedModelOptions options;
  task::Model model;
  std::vector<task::NamedTensor> trained;
  std::vector<torch::ScalarType> types;  ///< of these as they were, and as ranks keep them
  comm::Group agreements;
  Peers gathering, summing;
  std::vector<FlatPlan> plans;
  std::vector<FlatParameters> flats;
  std::shared_ptr<const optim::StateFile> kept_file;  ///< Kept::OnDisk
  std::uint64_t stepped_bytes = 0;                    ///< of it, in all updates
  std::vector<std::size_t> parameter_of;              ///< of each piece: its place in `trained`
  std::vector<std::size_t> flat_of;                   ///< of each piece
  std::vector<Piece> pieces;
  std::map<const void*, std::size_t> piece_of;  ///< by its tensor
  std::optional<ShardCopies> copies;
  std::vector<torch::Tensor> copied;  ///< by flat tensor: the part of the rank that is copied
                                      ///< here
  std::optional<WholeRenewal> renewal;
  std::map<const void*, std::size_t> updated;  ///< of this rank's own pieces: their flat tensors
  std::optional<UnitGathers> gathers;          ///< level 3
  std::optional<GradientShards> gradients;
  bool in_step = false, in_pass = false, in_backward = false;
  bool hooked = false;  ///< a HookedModel's
  ExchangeSpan span;
  std::optional<comm::Work> stage_agreement;               ///< under way, on the next pass
  std::shared_ptr<std::vector<std::int32_t>> most_passes;  ///< of any rank in this step
  int stage_passes = 0;                                    ///< of this one, so far
  std::function<void()> update;  ///< of parameters with gradients, in backward; none: the
                                 ///< caller does
  std::int32_t expected = 0;     ///< passes of this rank that are to come in this step; 0: unknown
  bool in_last_pass = false;     ///< of the step, or behind it: parameters with gradients are
                                 ///< updated
  bool exact = false;            ///< whole parameters in half are shown in their own type
};

}  // namespace bimetal::parallel::shard
