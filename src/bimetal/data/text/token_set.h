#pragma once
// Blocks of text as samples of a task: to foretell each token from those before it.
//
// Text as numbers on disk: what `bimetal data tokenize` writes and a language model reads.
//
// All numbers are little-endian. After a header of 72 bytes come the tokens, zeros up to a multiple
// of 8 bytes, and the documents' ends.
//
//   offset  bytes  what
//        0      8  "BMTOKENS"
//        8      4  version: 1
//       12      4  bytes of a token: 2 or 4
//       16      8  vocabulary: every token is less than this
//       24      8  tokens
//       32      8  documents
//       40     32  BLAKE2b-256 of everything from offset 72 on, followed by the bytes 0 … 39
//       72         tokens, each 2 or 4 bytes
//                  for each document 8 bytes: how many tokens there are up to its end. They do not
//                  decrease, and the last is the number of tokens

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bimetal/data/dataset_files.h"
#include "bimetal/task/task.h"

namespace bimetal::data {

/// An open one, mapped into memory; one that is gzipped is unpacked there. Immutable; several
/// threads may read it.
class TokenFile {
 public:
  /// Checks header and length, not the tokens. Errors: System if it cannot be read, CorruptData if
  /// it is no token file, of another version, or not as long as its header says; all name the file.
  explicit TokenFile(const std::filesystem::path& path);
  ~TokenFile();

  std::int64_t size() const noexcept { return size_; }  ///< tokens
  std::int64_t vocabulary() const noexcept { return vocabulary_; }
  std::int64_t documents() const noexcept { return documents_; }
  const std::string& name() const noexcept { return name_; }

  /// Tokens before the end of `document`, 0 … documents() - 1.
  std::int64_t document_end(std::int64_t document) const;

  /// Tokens `begin` … `begin + to.size() - 1`. Error(InvalidArgument) if they reach outside.
  void copy(std::int64_t begin, std::span<std::int64_t> to) const;

  /// Reads all of it. Error(CorruptData) if the checksum is another, a token is not in the
  /// vocabulary, or the documents' ends are not in order.
  void check() const;

  /// The checksum as 64 hexadecimal digits: equal for equal contents.
  std::string digest() const;

 private:
  class Bytes;

  void read_header();
  void check_documents() const;

  std::string name_;
  std::unique_ptr<const Bytes> bytes_;
  std::int64_t width_ = 0, vocabulary_ = 0, size_ = 0, documents_ = 0;
  std::span<const std::byte> tokens_, ends_;
};

/// Where blocks may reach.
enum class Documents {
  Join,      ///< one text: blocks go on over the ends of documents
  Separate,  ///< a block ends where its document ends
};

/// Target of padding, for which no loss is taken (ignore_index of torch's losses).
inline constexpr std::int64_t kNoTarget = -100;

/// A batch is {inputs [b, block], targets [b, block]}, both int64: targets[·, i] is the token after
/// inputs[·, i]. Over all samples every token is a target once, but for the first of the text (of
/// each document if they are separate), which has no token before it. The last block of a text may
/// be shorter: its rest has input 0 and target kNoTarget. A sample's weight is its number of
/// targets.
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
