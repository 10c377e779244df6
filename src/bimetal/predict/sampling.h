#pragma once
// How the tokens of a text are drawn: apart, for who asks for a text and needs no libtorch for it.

#include <cstdint>

namespace bimetal::predict {

struct Sampling {
  std::int64_t tokens = 200;  ///< how many are drawn
  double temperature = 1.0;   ///< logits are divided by it; 0: always the likeliest token
  std::int64_t top_k = 0;     ///< > 0: only so many of the likeliest (and their equals) are drawn
  std::uint64_t seed = 0;     ///< of the draws
};

}  // namespace bimetal::predict
