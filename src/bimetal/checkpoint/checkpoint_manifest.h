#pragma once
// state.json of a checkpoint: the training state, and the checksums of the other files. Private to
// the code that saves and hands on checkpoints.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/slices/tensor_index.h"

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

using FileRecords = std::map<std::string, FileRecord>;

/// For a checkpoint in slices: where the tensors are.
struct SliceIndex {
  int ranks = 1;  ///< that have saved it
  TensorIndex model, optimizer;
};

struct Manifest {
  std::uint64_t sequence = 0;  ///< grows with every save into a folder of checkpoints
  TrainingState state;
  std::string optimizer;                    ///< its kind
  nlohmann::ordered_json optimizer_groups;  ///< hyper-parameters, see optimizer_settings
  FileRecords files;
  std::optional<SliceIndex> slices = {};  ///< none: whole tensors, in kModelFile and kOptimizerFile
  /// Notes that the user's own training loop keeps beside, in its own words; empty for a job's
  /// checkpoint.
  std::string loop = {};
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

/// Size and checksum of the files of whole tensors, as they lie in `folder`.
FileRecords record_files(const std::filesystem::path& folder);

nlohmann::ordered_json files_json(const FileRecords& files);
/// Takes any names. Throws nlohmann's exceptions.
FileRecords parse_files(const nlohmann::ordered_json& json);

/// The index of the tensors' slices, for other ranks of the job. The way back: Error(CorruptData)
/// names `origin`.
std::string index_text(const SliceIndex& index);
SliceIndex parse_index_text(std::string_view text, const std::string& origin);

/// Error(CorruptData), naming it, if one of the manifest's files is not as recorded, Error(System)
/// if it cannot be read just now.
void verify_file(const std::filesystem::path& path, const FileRecord& expected);
/// The same for all of them.
void verify_files(const Manifest& manifest, const std::filesystem::path& folder);

}  // namespace bimetal::checkpoint
