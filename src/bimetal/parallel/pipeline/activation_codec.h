#pragma once
// Activations and their gradients in fewer bytes, for slow links: the codecs of comm/compress on
// tensors. docs/compression.md tells the loss.
//
// Shapes and types of values in a message of fixed length.

#include <torch/csrc/api/include/torch/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/fabric.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::pipeline {

/// How values between stages are compressed. All ranks of a mesh have the same.
struct ActivationCompression {
  comm::Scheme scheme = comm::Scheme::none;  ///< one with a dense codec, or none
  comm::CompressedLinks links = comm::CompressedLinks::between_islands;
};

/// The scheme between rank `rank` of a mesh and rank `other`, on a stage before or behind, whose
/// ranks have memory in common as `topology` says. Where tensors are in parts, all ranks of a
/// replica must compute with the same activations: a single pair of them on a slow link decides for
/// all.
comm::Scheme scheme_between(const MeshShape& shape, const comm::Topology& topology, int rank,
                            int other, const ActivationCompression& compression);

/// The same between this rank and each of mesh.pipeline(). Error(InvalidArgument) for a scheme
/// without a dense codec.
std::vector<comm::Scheme> schemes_of_peers(const Mesh& mesh,
                                           const ActivationCompression& compression);

/// The scheme by which a value goes over a link of `scheme`: none unless the value is of a
/// floating-point type and gets shorter.
comm::Scheme scheme_of_value(comm::Scheme scheme, const torch::Tensor& value);

/// The fraction of the bytes that is sent, for many values of floating-point type `dtype`.
double sent_part(comm::Scheme scheme, torch::Dtype dtype);

/// Bytes for what encode_tensor() makes of a tensor of as many elements.
torch::Tensor room_for_code(comm::Scheme scheme, const torch::Tensor& value);

/// `floats`: float32, contiguous, on the CPU.
torch::Tensor encode_tensor(comm::Scheme scheme, const torch::Tensor& floats);

/// A new float32 tensor of the shape of `like`, from what encode_tensor() made of as many elements.
torch::Tensor decode_tensor(comm::Scheme scheme, const torch::Tensor& code,
                            const torch::Tensor& like);

/// First the number of values, or that there are none to come; then the scheme by which they are
/// shortened. For each value: its type, whether it requires gradients, its number of dimensions,
/// and its dimensions.
using Description = std::array<std::int64_t, 64>;

/// Describes each value. Undefined ones are marked as such. Error(Unsupported) for more than fits
/// (eight tensors of four dimensions do), or for types that cannot be sent.
Description describe(const task::Values& values, comm::Scheme scheme = comm::Scheme::none);

/// Describes values that will not come.
Description describe_nothing();

struct Described {
  task::Values values;  ///< on the meta device: shapes and types without memory
  std::vector<bool> with_gradients;
  comm::Scheme scheme = comm::Scheme::none;
};

/// Nothing for describe_nothing(). Error(CorruptData) for nonsense.
std::optional<Described> read_description(const Description& description);

}  // namespace bimetal::parallel::pipeline
