#include "bimetal/train/shard_state.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/parallel/data/module_state.h"
#include "bimetal/train/optimizer_state.h"
#include "bimetal/train/safetensors.h"

namespace bimetal::train {
namespace {

using parallel::server::Body;
using parallel::server::Piece;
using parallel::server::ServerState;
using parallel::server::ShardPlan;
using parallel::server::ShardStore;

/// The pieces as parameters of a module, so that what knows modules knows them: "piece12".
class PieceModule : public torch::nn::Module {
 public:
  explicit PieceModule(const ShardStore& store) {
    for (std::size_t i = 0; i < store.pieces().size(); ++i) {
      register_parameter(name_of(store.pieces()[i]), store.piece_tensors()[i], false);
    }
  }
  static std::string name_of(std::uint32_t piece) { return fmt::format("piece{}", piece); }
};

/// A field of a parameter's state that has one number for each of its elements.
bool is_elementwise(const torch::Tensor& field) {
  return field.dim() > 0;
}

void put(WireWriter& out, const std::string& name, const torch::Tensor& tensor) {
  const auto flat = tensor.detach().contiguous();
  out.string(name);
  out.u8(static_cast<std::uint8_t>(flat.scalar_type()));
  out.u8(is_elementwise(flat) ? 1 : 0);
  out.u64(static_cast<std::uint64_t>(flat.nbytes()));
  out.raw({static_cast<const std::byte*>(flat.data_ptr()), flat.nbytes()});
}

struct NamedPart {
  std::string name;
  torch::Tensor values;
};

NamedPart take_part(WireReader& in) {
  NamedPart part{in.string(), {}};
  const auto type = static_cast<torch::ScalarType>(in.u8());
  const bool elementwise = in.u8() != 0;
  if (type != torch::kFloat32 && type != torch::kFloat64 && type != torch::kInt64) {
    throw Error(ErrorCode::CorruptData, "a tensor of a type that no state has");
  }
  const auto bytes = in.raw(in.u64());
  const auto count = static_cast<std::int64_t>(bytes.size() / c10::elementSize(type));
  part.values = elementwise ? torch::empty({count}, type) : torch::empty({}, type);
  if (part.values.nbytes() != bytes.size()) {
    throw Error(ErrorCode::CorruptData, "a tensor of another length than its bytes");
  }
  std::memcpy(part.values.data_ptr(), bytes.data(), bytes.size());
  return part;
}

/// "piece12.exp_avg" → 12, "exp_avg"; the second is empty for the parameter itself.
std::pair<std::uint32_t, std::string> parse_part(const std::string& name, const ShardPlan& plan) {
  constexpr std::string_view kPrefix = "piece";
  const auto dot = std::min(name.find('.'), name.size());
  std::uint32_t piece = 0;
  const char* const end = name.data() + dot;
  const auto parsed = name.starts_with(kPrefix)
                          ? std::from_chars(name.data() + kPrefix.size(), end, piece)
                          : std::from_chars_result{nullptr, std::errc::invalid_argument};
  if (parsed.ec != std::errc() || parsed.ptr != end || piece >= plan.pieces.size()) {
    throw Error(ErrorCode::CorruptData, fmt::format("no piece is called '{}'", name));
  }
  return {piece, dot < name.size() ? name.substr(dot + 1) : std::string()};
}

/// Writes a piece's part of a field into the whole tensor, which is made when its first part comes.
void place_part(const Piece& piece, const torch::Tensor& part, const torch::Tensor& like,
                torch::Tensor& whole) {
  if (!is_elementwise(part)) {
    whole = part;
    return;
  }
  if (part.numel() != piece.count) {
    throw Error(ErrorCode::CorruptData, "a part of a tensor has another length than its piece");
  }
  if (!whole.defined()) whole = torch::zeros(like.sizes(), part.scalar_type());
  whole.flatten().narrow(0, piece.offset, piece.count).copy_(part);
}

}  // namespace

Body shard_state(ShardStore& store) {
  WireWriter out;
  for (std::size_t i = 0; i < store.pieces().size(); ++i) {
    put(out, PieceModule::name_of(store.pieces()[i]), store.piece_tensors()[i]);
  }
  if (store.pieces().empty()) return std::move(out).take();
  const PieceModule module(store);
  for (const auto& [name, tensor] : optimizer_tensors(store.optimizer(), module)) {
    put(out, name, tensor);
  }
  return std::move(out).take();
}

void assemble_state(std::span<const ServerState> states, const ShardPlan& plan,
                    torch::nn::Module& module, torch::optim::Optimizer& optimizer) {
  const auto named = parallel::module_state(module).parameters;
  std::vector<torch::Tensor> values(named.size());
  TensorMap learnt;
  for (const ServerState& state : states) {
    try {
      for (WireReader in(state.bytes); in.remaining() > 0;) {
        const auto part = take_part(in);
        const auto [number, field] = parse_part(part.name, plan);
        const Piece& piece = plan.pieces[number];
        const auto& parameter = named[piece.tensor];
        auto& whole = field.empty() ? values[piece.tensor] : learnt[parameter.name + "." + field];
        place_part(piece, part.values, parameter.tensor, whole);
      }
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("the state that server {} has sent: {}", state.shard, error.what()),
                  state.shard);
    }
  }
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (values[i].defined()) named[i].tensor.detach().copy_(values[i]);
  }
  optimizer.state() = optimizer_states(learnt, optimizer, module, "the servers' state");
}

void restore_shard(ShardStore& store, const torch::optim::Optimizer& optimizer,
                   const torch::nn::Module& module) {
  if (store.pieces().empty()) return;
  const auto learnt = optimizer_tensors(optimizer, module);
  const auto named = parallel::module_state(module).parameters;
  TensorMap parts;
  for (std::size_t i = 0; i < store.pieces().size(); ++i) {
    const auto number = store.pieces()[i];
    const Piece& piece = store.plan().pieces[number];
    const auto prefix = named[piece.tensor].name + ".";
    for (auto field = learnt.lower_bound(prefix);
         field != learnt.end() && field->first.starts_with(prefix); ++field) {
      const auto name = field->first.substr(prefix.size());
      if (name.find('.') != std::string::npos) continue;
      parts[PieceModule::name_of(number) + "." + name] =
          is_elementwise(field->second) ? field->second.flatten()
                                              .narrow(0, piece.offset, piece.count)
                                              .clone()
                                              .view_as(store.piece_tensors()[i])
                                        : field->second.clone();
    }
  }
  const PieceModule pieces(store);
  store.optimizer().state() =
      optimizer_states(parts, store.optimizer(), pieces, "the checkpoint's part for this server");
}

}  // namespace bimetal::train
