#pragma once
// state.json of a checkpoint: the training state, and what the other files must look like.
// Private to what saves and hands on checkpoints.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "bimetal/checkpoint/checkpoint.h"

namespace bimetal::checkpoint {

inline constexpr auto kModelFile = "model.safetensors";
inline constexpr auto kOptimizerFile = "optimizer.safetensors";
inline constexpr auto kFeedbackFile = "error_feedback.safetensors";  ///< not in every checkpoint
inline constexpr auto kStateFile = "state.json";

struct FileRecord {
  std::uint64_t size = 0;
  std::string sha256;
  bool operator==(const FileRecord&) const = default;
};

struct Manifest {
  std::uint64_t sequence = 0;  ///< grows with every save into a folder of checkpoints
  TrainingState state;
  std::string optimizer;                    ///< its kind
  nlohmann::ordered_json optimizer_groups;  ///< hyper-parameters, see optimizer_settings
  std::map<std::string, FileRecord> files;
};

/// JSON that ends with a checksum of itself.
std::string manifest_text(const Manifest& manifest);

/// The training state alone, without error feedback, in the same JSON: for other ranks of the job.
std::string state_text(const TrainingState& state);

/// The way back. Error(CorruptData) names `origin`.
TrainingState parse_state_text(std::string_view text, const std::string& origin);

/// Reads folder/state.json. Error(CorruptData) if it is damaged or missing, Error(Unsupported) if
/// it is of a later format, Error(System) if it cannot be read just now, which says nothing about
/// it.
Manifest read_manifest(const std::filesystem::path& folder);

/// Size and checksum of the tensor files, as they lie in `folder`.
std::map<std::string, FileRecord> record_files(const std::filesystem::path& folder);

/// Error(CorruptData) names the first of the manifest's files that is not as recorded,
/// Error(System) one that cannot be read just now.
void verify_files(const Manifest& manifest, const std::filesystem::path& folder);

}  // namespace bimetal::checkpoint
