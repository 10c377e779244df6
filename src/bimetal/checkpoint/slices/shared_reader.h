#pragma once
// A checkpoint of which every rank reads the slices that it wants, whatever it was saved in and by
// how many.

#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/checkpoint/open_checkpoint.h"
#include "bimetal/comm/group.h"

namespace bimetal::checkpoint {

// Bytes of any number on their way from one rank to another, piece by piece: neither has more than
// a piece of them in memory.

/// The receiver wants no more. It has said why elsewhere.
struct RelayRefused : std::exception {
  const char* what() const noexcept override { return "the receiver has no use for more"; }
};

/// One end; the other is the peer's RelayIn. Waits for the peer with every piece, by kFileTimeout.
/// Errors: the fabric's.
class RelayOut {
 public:
  RelayOut(comm::Group group, int peer);
  /// Throws RelayRefused.
  void write(std::span<const std::byte> bytes);
  /// That was all. Throws RelayRefused.
  void end();

 private:
  void send_piece();

  comm::Group group_;
  int peer_;
  std::vector<std::byte> piece_;
};

class RelayIn {
 public:
  RelayIn(comm::Group group, int peer);
  /// False at the end.
  bool next(std::vector<std::byte>& piece);
  /// In place of next(): the end, though there is more.
  void refuse();

 private:
  comm::Group group_;
  int peer_;
};

/// Use from one thread.
class SharedReader {
 public:
  /// Rank 0 opens and verifies the checkpoint that its `path` names; others' `path` is ignored.
  /// Ranks that see that checkpoint, on a common machine or file system, read from it themselves,
  /// and ask rank 0 otherwise. Nothing is found if rank 0 has no path. Collective. Errors:
  /// find_checkpoint's, of rank 0 and on every rank; Error(CorruptData) on a rank that is sent
  /// nonsense.
  SharedReader(comm::Group group, const std::optional<std::filesystem::path>& path);

  bool found() const noexcept { return index_.has_value(); }

  // For ranks that have found one:
  /// Compressed gradients' error feedback is rank 0's alone.
  const TrainingState& state() const noexcept { return state_; }
  const SliceIndex& index() const noexcept { return *index_; }
  /// Manifest::loop.
  const std::string& loop() const noexcept { return loop_; }
  /// Shows it to `look`, on rank 0; if that throws, every rank does. Collective; nothing where none
  /// is found.
  void on_rank_0(const std::function<void(OpenCheckpoint& opened)>& look);

  /// Gives `wanted` of the model's tensor `name`, or of the optimizer's, in its own shape and on
  /// the CPU; the index must have it.
  struct Read {
    std::function<torch::Tensor(const std::string&name, const Slice&wanted)> model, optimizer;
  };
  /// Each rank takes the tensors that it wants, in any order. Collective. Errors: OpenCheckpoint's
  /// where a rank reads, the fabric's.
  void each_takes(const std::function<void(const Read& read)>& take);

 private:
  std::string open(const std::filesystem::path& path);
  Read reader();
  void answer(int rank);
  torch::Tensor ask(char part, const std::string& name, const StoredTensor& tensor,
                    const Slice& wanted);

  comm::Group group_;
  std::optional<OpenCheckpoint> here_;  ///< where this rank sees it
  TrainingState state_;
  std::string loop_;
  std::optional<SliceIndex> index_;
  std::vector<std::uint8_t> seeing_;  ///< of each rank
};

}  // namespace bimetal::checkpoint
