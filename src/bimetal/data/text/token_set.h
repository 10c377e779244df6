#pragma once
// Blocks of text as samples of a task: to foretell each token from those before it.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bimetal/data/dataset_files.h"
#include "bimetal/data/text/token_file.h"
#include "bimetal/task/task.h"

namespace bimetal::data {

/// What a block may reach over.
enum class Documents {
  Join,      ///< one text: blocks go on over the ends of documents
  Separate,  ///< a block ends where its document ends
};

/// Target of padding, of which no loss is taken (ignore_index of torch's losses).
inline constexpr std::int64_t kNoTarget = -100;

/// A batch is {inputs [b, block], targets [b, block]}, both int64: targets[·, i] is the token after
/// inputs[·, i]. Over all samples every token is a target once, but for the first of the text (of
/// each document if they are separate), which nothing foretells. The last block of a text may be
/// shorter: its rest has input 0 and target kNoTarget. A sample's weight is its number of targets.
class TokenSet final : public task::Dataset {
 public:
  /// `block`: tokens of a sample, at least 1. Error(InvalidArgument) if the file has nothing to
  /// foretell.
  TokenSet(std::shared_ptr<const TokenFile> file, std::int64_t block, Documents documents);

  std::int64_t size() const override { return samples_; }
  std::int64_t weight(std::int64_t sample) const override { return place_of(sample).targets; }
  /// Error(InvalidArgument) for a sample outside the set.
  task::Values batch(std::span<const std::int64_t> samples) const override;

  std::int64_t block() const noexcept { return block_; }
  std::int64_t vocabulary() const noexcept { return file_->vocabulary(); }
  const TokenFile& file() const noexcept { return *file_; }

 private:
  /// A text of at least two tokens, cut into blocks.
  struct Run {
    std::int64_t first_sample, begin, end;
  };
  struct Place {
    std::int64_t begin, targets;
  };

  void add_run(std::int64_t begin, std::int64_t end);
  Place place_of(std::int64_t sample) const;

  std::shared_ptr<const TokenFile> file_;
  std::int64_t block_;
  std::vector<Run> runs_;
  std::int64_t samples_ = 0;
};

struct TokenSets {
  std::shared_ptr<const TokenSet> train;
  std::shared_ptr<const TokenSet> test;  ///< nullptr where its file has no tokens, or is not there
};

/// Reads what find_dataset("tokens", …) has found, all of it. `documents`: "join" or "separate".
/// Errors: CorruptData for damaged files, and for two of different vocabularies; InvalidArgument
/// for a block below 1 and a file with nothing to
/// foretell.
TokenSets load_tokens(const DatasetFiles& files, std::int64_t block, const std::string& documents);

}  // namespace bimetal::data
