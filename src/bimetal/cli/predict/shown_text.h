#pragma once
// A text on standard output.

#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/cli/predict/text_codec.h"

namespace bimetal::cli {

/// Prints a text as it grows, where its tokens are bytes: others mean what they mean among their
/// neighbours, and are shown at the end. Use from one thread.
class ShownText {
 public:
  /// `codec` must outlive it. Errors: its.
  ShownText(const std::string& prompt, const TextCodec& codec);

  const std::vector<std::int64_t>& prompt() const noexcept { return prompt_; }

  void add(const std::vector<std::int64_t>& tokens);
  void finish() const;

 private:
  const TextCodec& codec_;
  std::vector<std::int64_t> tokens_;
  const std::vector<std::int64_t> prompt_;
};

}  // namespace bimetal::cli
