#pragma once
// What a model makes of one sample, for people to look at.

#include <cstdint>
#include <string>
#include <vector>

namespace bimetal::progress {

struct Sample {
  std::string text = {};  ///< for people: "label 3, taken for 3 (97 %), 8 (2 %)…"
  /// Of an image: channels, height and width, and its values 0…255 in that order. Empty: it is
  /// none, or a large one.
  std::vector<std::int64_t> shape = {};
  std::vector<std::uint8_t> pixels = {};
  /// Of a language model: what it was given, and how it has gone on.
  std::vector<std::int64_t> prompt = {}, tokens = {};
  std::int64_t vocabulary = 0;
};

}  // namespace bimetal::progress
