#include "bimetal/cli/predict/shown_text.h"

#include "bimetal/cli/terminal.h"

namespace bimetal::cli {

ShownText::ShownText(const std::string& prompt, const TextCodec& codec)
    : codec_(codec), tokens_(codec.encode(prompt)), prompt_(tokens_) {
  if (codec_.bytes()) write_to(stdout, prompt);
}

void ShownText::add(const std::vector<std::int64_t>& tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (codec_.bytes()) write_to(stdout, codec_.decode(tokens));
}

void ShownText::finish() const {
  if (!codec_.bytes()) write_to(stdout, codec_.decode(tokens_));
  write_to(stdout, "\n");
}

}  // namespace bimetal::cli
