#include "bimetal/parallel/server/shard_store.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/optim/part_of_step.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/server/codec.h"
#include "bimetal/parallel/server/ledger/ledger.h"

namespace bimetal::parallel::server {
namespace {

// A worker has one lease at a time; its finished leases wait here for the steps before. Several
// dozen steps ahead is more than any staleness of use.
constexpr std::size_t kMaxLeasesOfAWorker = 256;

std::byte* bytes_at(const torch::Tensor& flat, std::int64_t element) {
  return static_cast<std::byte*>(flat.data_ptr()) + element * flat.element_size();
}

torch::ScalarType type_of(const std::vector<torch::Tensor>& parameters) {
  const auto type = parameters.empty() ? torch::kFloat32 : parameters.front().scalar_type();
  const bool alike = std::ranges::all_of(
      parameters, [&](const auto& tensor) { return tensor.scalar_type() == type; });
  if (alike && (type == torch::kFloat32 || type == torch::kFloat64)) return type;
  throw Error(ErrorCode::Unsupported,
              "parameter servers keep parameters of one type, float32 or float64");
}

}  // namespace

torch::Tensor TensorPool::take() {
  if (free_.empty()) return torch::empty({elements_}, type_);
  auto tensor = std::move(free_.back());
  free_.pop_back();
  return tensor;
}

void TensorPool::give_back(torch::Tensor tensor) {
  // An optimizer may have kept a view of a gradient.
  if (free_.size() < most_ && tensor.storage().use_count() == 1) free_.push_back(std::move(tensor));
}

std::shared_ptr<const torch::Tensor> TensorPool::share(torch::Tensor tensor) {
  return {new torch::Tensor(std::move(tensor)), [pool = weak_from_this()](torch::Tensor* shared) {
            const std::unique_ptr<torch::Tensor> last(shared);
            if (const auto here = pool.lock()) here->give_back(std::move(*last));
          }};
}

void TensorPool::keep(std::size_t most) {
  most_ = most;
  if (free_.size() > most_) free_.resize(most_);
}

ShardStore::ShardStore(const ShardPlan& plan, int server,
                       const std::vector<torch::Tensor>& parameters,
                       const MakeOptimizer& make_optimizer, std::uint64_t version,
                       optim::GradientLimits limits)
    : plan_(plan), limits_(limits), version_(version) {
  const auto type = type_of(parameters);
  const torch::NoGradGuard no_grad;
  const auto elements = plan.shard_elements[static_cast<std::size_t>(server)];
  pool_ = std::make_shared<TensorPool>(elements, type);
  values_ = pool_->share(pool_->take());
  element_bytes_ = values_->element_size();
  dtype_ = static_cast<std::uint8_t>(comm_dtype_of(*values_));
  for (std::uint32_t i = 0; i < plan_.pieces.size(); ++i) {
    const Piece& piece = plan_.pieces[i];
    if (piece.server != server) continue;
    auto own = values_->narrow(0, piece.shard_offset, piece.count);
    own.copy_(
        parameters[piece.tensor].detach().cpu().flatten().narrow(0, piece.offset, piece.count));
    index_[i] = pieces_.size();
    pieces_.push_back(i);
    const auto& whole = parameters[piece.tensor];
    tensors_.push_back(piece.count == whole.numel() ? own.view(whole.sizes()) : own);
  }
  // libtorch's optimizers refuse an empty list; a server without pieces has nothing to do.
  if (!tensors_.empty()) optimizer_ = make_optimizer(tensors_);
}

std::size_t ShardStore::index_of(std::uint32_t piece) const {
  const auto found = index_.find(piece);
  if (found != index_.end()) return found->second;
  throw Error(ErrorCode::CorruptData,
              fmt::format("piece {} of the parameters is not this server's", piece));
}

ShardStore::Staged& ShardStore::stage(std::uint64_t lease) {
  const auto found = staged_.find(lease);
  if (found != staged_.end()) return found->second;
  const auto first = staged_.lower_bound(lease >> 32 << 32);
  const auto last = staged_.lower_bound(((lease >> 32) + 1) << 32);
  if (static_cast<std::size_t>(std::distance(first, last)) >= kMaxLeasesOfAWorker) {
    throw Error(ErrorCode::OutOfMemory,
                fmt::format("worker {} has pushed gradients of {} leases that were not applied yet",
                            worker_of(lease), kMaxLeasesOfAWorker));
  }
  Staged staged;
  staged.gradients = pool_->take();
  staged.arrived.resize(pieces_.size());
  return staged_.emplace(lease, std::move(staged)).first->second;
}

std::span<std::byte> ShardStore::place(std::uint64_t lease, std::uint32_t piece, std::uint8_t dtype,
                                       PushForm form, std::uint64_t bytes) {
  const auto index = index_of(piece);
  const auto count = static_cast<std::size_t>(plan_.pieces[piece].count);
  const bool compressed = form.scheme != comm::Scheme::none;
  if (compressed && values_->scalar_type() != torch::kFloat32) {
    throw Error(ErrorCode::CorruptData, "a compressed gradient of parameters that are not float32");
  }
  const auto expected = compressed ? pushed_bytes(form, matrix_of(tensors_[index]))
                                   : count * static_cast<std::size_t>(element_bytes_);
  if (dtype != dtype_ || bytes != expected) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("a gradient of piece {} has {} bytes of type {}, {} of type {} were "
                            "expected",
                            piece, bytes, dtype, expected, dtype_));
  }
  Staged& staged = stage(lease);
  if (staged.closed || staged.arrived[index]) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("the gradient of piece {} was pushed twice for one lease", piece));
  }
  staged.form = form;
  if (compressed) {
    staged.encoded.resize(expected);
    return staged.encoded;
  }
  return {bytes_at(staged.gradients, plan_.pieces[piece].shard_offset), expected};
}

void ShardStore::received(std::uint64_t lease, std::uint32_t piece) {
  const auto found = staged_.find(lease);
  if (found == staged_.end()) return;  // dropped while it was on its way
  Staged& staged = found->second;
  const Piece& place = plan_.pieces[piece];
  const auto index = index_of(piece);
  if (staged.form.scheme != comm::Scheme::none) {
    auto* values = reinterpret_cast<float*>(bytes_at(staged.gradients, place.shard_offset));
    decode_push(staged.form, matrix_of(tensors_[index]), staged.encoded,
                {values, static_cast<std::size_t>(place.count)});
  }
  // Here, where the piece still lies in the cache.
  staged.finite = staged.finite && finite(staged.gradients, place);
  staged.arrived[index] = true;
  ++staged.count;
}

bool ShardStore::finite(const torch::Tensor& flat, const Piece& piece) const {
  const auto count = static_cast<std::size_t>(piece.count);
  const auto* const bytes = bytes_at(flat, piece.shard_offset);
  if (flat.scalar_type() == torch::kFloat64) {
    return comm::all_finite(std::span(reinterpret_cast<const double*>(bytes), count));
  }
  return comm::all_finite(std::span(reinterpret_cast<const float*>(bytes), count));
}

bool ShardStore::close_lease(std::uint64_t lease, std::uint64_t pieces) {
  Staged& staged = stage(lease);
  if (staged.closed || staged.count != pieces) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("{} gradients arrived for a lease of which {} were announced",
                            staged.count, pieces));
  }
  staged.closed = true;
  staged.encoded = {};
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (staged.arrived[i]) continue;
    const Piece& piece = plan_.pieces[pieces_[i]];
    // So that whole shards can be added.
    staged.gradients.narrow(0, piece.shard_offset, piece.count).zero_();
  }
  const bool finite = staged.finite;
  if (dropped_.erase(lease) > 0) forget(staged_.find(lease));
  return finite;
}

void ShardStore::forget(StagedLeases::iterator staged) {
  auto gradients = std::move(staged->second.gradients);
  staged_.erase(staged);
  pool_->give_back(std::move(gradients));
}

void ShardStore::drop(std::uint64_t lease) {
  const auto found = staged_.find(lease);
  if (found != staged_.end() && found->second.closed) {
    forget(found);
  } else {
    dropped_.insert(lease);
  }
}

void ShardStore::forget_worker(int worker) {
  const auto of_worker = [worker](std::uint64_t lease) { return worker_of(lease) == worker; };
  for (auto entry = staged_.begin(); entry != staged_.end();) {
    const auto here = entry++;
    if (of_worker(here->first) && !here->second.closed) forget(here);
  }
  std::erase_if(dropped_, of_worker);
}

void ShardStore::forget_leases_before(std::uint32_t first_lease) {
  std::vector<std::uint64_t> old;
  for (const auto& [lease, staged] : staged_) {
    if (static_cast<std::uint32_t>(lease) < first_lease) old.push_back(lease);
  }
  for (const auto lease : old) drop(lease);
}

void ShardStore::apply(std::uint64_t version, const Apply& update) {
  std::vector<StagedLeases::iterator> leases;
  for (const auto id : update.leases) {
    const auto found = staged_.find(id);
    if (found == staged_.end() || !found->second.closed) {
      throw Error(
          ErrorCode::Internal,
          fmt::format("the gradients of a lease of worker {} are to be applied, but are not "
                      "on this server",
                      worker_of(id)));
    }
    leases.push_back(found);
  }
  // As many will be wanted again, and one for a copy or a prediction.
  pool_->keep(staged_.size() + 2);
  if (!leases.empty() && optimizer_) {
    const torch::NoGradGuard no_grad;
    auto& sum = leases.front()->second.gradients;
    auto& used = leases.front()->second.arrived;
    for (std::size_t i = 1; i < leases.size(); ++i) {
      const Staged& staged = leases[i]->second;
      sum.add_(staged.gradients);
      for (std::size_t j = 0; j < used.size(); ++j) used[j] = used[j] || staged.arrived[j];
    }
    own_values();
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = plan_.pieces[pieces_[i]];
      // A parameter that nobody used has no gradient, as on one device.
      tensors_[i].mutable_grad() =
          used[i] ? sum.narrow(0, piece.shard_offset, piece.count).view_as(tensors_[i])
                  : torch::Tensor();
    }
    optim::clip(optim::gradients_of(*optimizer_), limits_);
    learning_rate_scale_ = update.learning_rate_scale;
    optim::step_by_part(*optimizer_, update.learning_rate_scale, update.part);
    for (auto& tensor : tensors_) tensor.mutable_grad() = torch::Tensor();
  }
  for (const auto lease : leases) forget(lease);
  version_ = version;
}

/// While somebody still reads the values, the optimizer goes on with a copy of them.
void ShardStore::own_values() {
  if (values_.use_count() == 1) return;
  auto copy = pool_->take();
  copy.copy_(*values_);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = plan_.pieces[pieces_[i]];
    // The same tensors, by which the optimizer knows its state, with other memory.
    tensors_[i].set_data(copy.narrow(0, piece.shard_offset, piece.count).view_as(tensors_[i]));
  }
  values_ = pool_->share(std::move(copy));
}

std::shared_ptr<const torch::Tensor> ShardStore::values(double steps_ahead) {
  if (steps_ahead == 0 || !optimizer_) return values_;
  auto later = pool_->take();
  later.copy_(*values_);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = plan_.pieces[pieces_[i]];
    auto own = later.narrow(0, piece.shard_offset, piece.count).view_as(tensors_[i]);
    optim::look_ahead(*optimizer_, tensors_[i], steps_ahead, learning_rate_scale_, own);
  }
  return pool_->share(std::move(later));
}

std::shared_ptr<const EncodedPieces> ShardStore::encoded(comm::Scheme scheme, double steps_ahead) {
  if (steps_ahead == 0) return pull_codec_.encode(scheme, version_, *values_, plan_, pieces_);
  PullCodec once;  // nobody else wants them for that moment
  return once.encode(scheme, version_, *values(steps_ahead), plan_, pieces_);
}

std::span<const std::byte> ShardStore::bytes_of(const Piece& piece,
                                                const torch::Tensor& values) const {
  return {bytes_at(values, piece.shard_offset),
          static_cast<std::size_t>(piece.count * element_bytes_)};
}

}  // namespace bimetal::parallel::server
