#pragma once
// One server's shard of the parameters, the optimizer that works on it, and the gradients that have
// been pushed but not applied. On the CPU. Use from one thread.
//
// Memory as large as a shard that is used again. Allocated anew for every step, it would cost a
// page fault per 4 KiB each time. Private to shard_store.cpp.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/optim/clip.h"
#include "bimetal/parallel/server/codec.h"
#include "bimetal/parallel/server/link/message.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {

/// Flat tensors of one length and type. Use from one thread.
class TensorPool : public std::enable_shared_from_this<TensorPool> {
 public:
  TensorPool(std::int64_t elements, torch::ScalarType type) : elements_(elements), type_(type) {}

  /// With whatever it last held.
  torch::Tensor take();

  /// `tensor`: from take(). Memory that something else still refers to is left to that.
  void give_back(torch::Tensor tensor);

  /// A tensor that is given back when the last reference goes, if the pool is still there.
  std::shared_ptr<const torch::Tensor> share(torch::Tensor tensor);

  /// From now on no more than `most` wait to be taken.
  void keep(std::size_t most);
  std::size_t waiting() const noexcept { return free_.size(); }

 private:
  const std::int64_t elements_;
  const torch::ScalarType type_;
  std::size_t most_ = 1;
  std::vector<torch::Tensor> free_;
};

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

class ShardStore {
 public:
  /// `parameters`: the model's, in the plan's order, with the values to start from; all of one
  /// type, float32 or float64 (Error(Unsupported) otherwise). They are copied. `limits` are kept by
  /// each update's gradients; a norm is this shard's.
  ShardStore(const ShardPlan& plan, int server, const std::vector<torch::Tensor>& parameters,
             const MakeOptimizer& make_optimizer, std::uint64_t version = 0,
             optim::GradientLimits limits = {});

  // ---- pushes
  // ------------------------------------------------------------------------------------

  /// The place to put `bytes` of piece `piece`'s gradient for `lease`. Errors (nothing changes):
  /// CorruptData for a piece that is not this server's, that has come before, or of another length
  /// or type; OutOfMemory for more leases at once than the worker can have.
  std::span<std::byte> place(std::uint64_t lease, std::uint32_t piece, std::uint8_t dtype,
                             PushForm form, std::uint64_t bytes);
  /// They have arrived. Error(CorruptData) if they have no meaning in their form.
  void received(std::uint64_t lease, std::uint32_t piece);
  /// All `pieces` of the lease are here: whether every number is finite. Error(CorruptData) if it
  /// is another number of pieces, or the lease has been closed before.
  bool close_lease(std::uint64_t lease, std::uint64_t pieces);
  /// Forgets the lease, also if it is still to come.
  void drop(std::uint64_t lease);
  /// The worker is gone: its unfinished gradients are forgotten, finished ones stay.
  void forget_worker(int worker);
  /// No lease numbered below `first_lease` will be applied any more.
  void forget_leases_before(std::uint32_t first_lease);
  std::size_t staged_leases() const noexcept { return staged_.size(); }

  // ---- parameters
  // --------------------------------------------------------------------------------

  /// Sums the leases in the order given and lets the optimizer change the parameters.
  /// Error(Internal) if one of them is not here whole; nothing changes.
  void apply(std::uint64_t version, const Apply& update);
  std::uint64_t version() const noexcept { return version_; }

  /// The shard as it is now, flat. It stays like that until its last user lets go: an update
  /// changes the memory itself only where nobody else looks at it. Let go on the store's thread.
  std::shared_ptr<const torch::Tensor> values() const noexcept { return values_; }
  /// The same as it will be so many steps later by the optimizer's velocity; look_ahead().
  std::shared_ptr<const torch::Tensor> values(double steps_ahead);
  std::span<const std::byte> bytes_of(const Piece& piece, const torch::Tensor& values) const;
  /// The same, shortened. Errors of require_pull_scheme().
  std::shared_ptr<const EncodedPieces> encoded(comm::Scheme scheme, double steps_ahead);

  /// Numbers, within the plan, of this server's pieces, and the tensors that the optimizer works
  /// on, in the same order: flat ones, except that a piece which is a whole tensor has that
  /// tensor's shape.
  const std::vector<std::uint32_t>& pieces() const noexcept { return pieces_; }
  const std::vector<torch::Tensor>& piece_tensors() const noexcept { return tensors_; }
  torch::optim::Optimizer& optimizer() noexcept { return *optimizer_; }
  const ShardPlan& plan() const noexcept { return plan_; }
  torch::ScalarType type() const noexcept { return values_->scalar_type(); }

 private:
  struct Staged {
    torch::Tensor gradients;         ///< like the values
    std::vector<bool> arrived;       ///< per piece of this server
    std::vector<std::byte> encoded;  ///< a compressed piece on its way in
    PushForm form;                   ///< of that piece
    std::uint64_t count = 0;
    bool finite = true;
    bool closed = false;
  };
  using StagedLeases = std::map<std::uint64_t, Staged>;
  std::size_t index_of(std::uint32_t piece) const;
  Staged& stage(std::uint64_t lease);
  void forget(StagedLeases::iterator staged);
  bool finite(const torch::Tensor& flat, const Piece& piece) const;
  void own_values();

  ShardPlan plan_;
  std::shared_ptr<TensorPool> pool_;
  std::shared_ptr<const torch::Tensor> values_;
  std::int64_t element_bytes_;
  std::uint8_t dtype_;
  std::vector<std::uint32_t> pieces_;
  std::map<std::uint32_t, std::size_t> index_;
  std::vector<torch::Tensor> tensors_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  optim::GradientLimits limits_;
  std::uint64_t version_;
  double learning_rate_scale_ = 1;  ///< of the newest update
  PullCodec pull_codec_;
  StagedLeases staged_;
  std::set<std::uint64_t> dropped_;  ///< leases to be forgotten when they come
};

}  // namespace bimetal::parallel::server
