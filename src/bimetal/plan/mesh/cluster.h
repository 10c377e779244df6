#pragma once
// Devices and the links between them, measured or described.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/plan/model_facts.h"
#include "bimetal/plan/plan.h"

namespace bimetal::plan {

struct MeshDevice {
  std::string name = {};
  std::size_t host = 0;                                           ///< index of Network::hosts
  double memory_bytes = std::numeric_limits<double>::infinity();  ///< for a model and its training
  std::size_t facts = 0;     ///< which of the measured facts are of a device like it
  double slower = 1;         ///< factor on their seconds
  bool keeps_freed = false;  ///< memory of freed tensors, where there is room (kept_beside)
  bool is_host = false;      ///< a CPU: its own cores copy and add the data sent within its
                             ///< host
  int parts = 1;             ///< devices that it stands for, each with a part of its tensors
};

struct HostLinks {
  std::string name = {};
  LinkSpeed inside = {};  ///< between two devices of the host
  LinkSpeed uplink = {};  ///< of the host, in each direction, whatever its devices do at a time
};

/// The links between devices: two levels (devices of a host, hosts), or every pair as measured.
struct Network {
  std::vector<HostLinks> hosts = {};
  std::vector<LinkSpeed> pairs = {};  ///< [from · n + to]; empty: two levels
};

/// Devices and their network. Cheap questions; safe from any thread.
class Cluster {
 public:
  /// Error(InvalidArgument) for no devices, a host that is not there, a device without memory or
  /// speed, a link without a rate, or pairs that are not n².
  Cluster(std::vector<MeshDevice> devices, Network network);

  const std::vector<MeshDevice>& devices() const noexcept { return devices_; }
  const MeshDevice& device(int index) const { return devices_[static_cast<std::size_t>(index)]; }
  int size() const noexcept { return static_cast<int>(devices_.size()); }
  const Network& network() const noexcept { return network_; }
  const HostLinks& host_of(int device) const;
  bool same_host(int a, int b) const;

  LinkSpeed link(int from, int to) const;

  /// Messages of so many bytes from from[i] to to[i], all at once: those that leave a host, or
  /// come to it, share its uplink.
  double send_seconds(std::span<const int> from, std::span<const int> to,
                      std::span<const double> bytes) const;

  /// An all-reduce of `bytes`: a ring within a host; between hosts the sums of each host's devices,
  /// by the faster of a ring and a tree (ring_seconds(); a tree takes 2·⌈log₂ n⌉ rounds of all
  /// bytes). Measured pairs: a ring over the slowest link.
  double all_reduce_seconds(std::span<const int> members, double bytes) const;

 private:
  std::vector<MeshDevice> devices_;
  Network network_;
};

// Clusters that a TOML file describes, without being there: docs/planning.md lists the keys.

struct DescribedCluster {
  std::vector<MeshDevice> devices = {};  ///< `slower` is that of a device of 1 TFLOP/s
  Network network = {};
  std::optional<ModelFacts> model = {};  ///< of its [model]; seconds of a device of 1 TFLOP/s
  std::int64_t global_batch = 0;         ///< of its [model]; 0: the job's
};

/// Error(InvalidArgument) naming `origin`, the line and its fault.
DescribedCluster parse_cluster(std::string_view text, const std::string& origin);

/// Error(System) where it cannot be read.
DescribedCluster read_cluster(const std::filesystem::path& path);

// Facts of a language model from its sizes, without a measurement, for clusters that are not there.

struct TransformerSizes {
  std::int64_t layers = 12, width = 768, context = 1024, vocabulary = 50257;
  std::int64_t heads = 0;    ///< 0: of 64 numbers each
  int element_bytes = 4;     ///< of parameters and gradients
  int activation_bytes = 4;  ///< of computed values
  double state_bytes = 8;    ///< of the optimizer for each parameter
};

/// Embedding, blocks and a head that shares its matrix: units as models/language has them. Seconds
/// are those of a device of 1 TFLOP/s: 24·T·w² + 4·T²·w operations for a block's forward and twice
/// as many for its backward (Narayanan et al., SC 2021, appendix), 2·T·w·V for the head's. A block
/// saves 16 numbers for each token and element of the width, its attention being computed again in
/// backward (Korthikanti et al., MLSys 2023, §4.1, less the dropout masks); the head two for each
/// logit, and three while it runs. In parts, 4 of a block's 16 numbers stay whole on each rank (the
/// inputs of normalisations and of matrices cut by columns: §4.2 there), and its input is summed
/// twice in forward and in backward (Shoeybi et al. 2019, §3).
ModelFacts transformer_facts(const TransformerSizes& sizes);

}  // namespace bimetal::plan
