#include "bimetal/net/pairing/code.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/net/noise.h"

namespace bimetal::net {
namespace {

constexpr std::size_t kWordsInCode = 4;

/// English, four to six letters. No two begin with the same four letters, or differ in one letter.
constexpr std::array<std::string_view, 256> kWords = {
    "acid",   "acorn",  "actor",  "album",  "alley",  "amber",  "angle",  "apron",  "arena",
    "arrow",  "atlas",  "attic",  "award",  "bacon",  "badge",  "bagel",  "baker",  "banjo",
    "barn",   "basil",  "beard",  "beast",  "bench",  "berry",  "bike",   "birch",  "bishop",
    "blaze",  "bloom",  "bottle", "bowl",   "brain",  "brick",  "bridge", "brush",  "bubble",
    "bucket", "bulb",   "bunny",  "cabin",  "cactus", "camel",  "candy",  "canoe",  "canvas",
    "carbon", "cargo",  "carpet", "carrot", "castle", "celery", "cello",  "chalk",  "cherry",
    "chess",  "cigar",  "circus", "clay",   "clinic", "clock",  "cloud",  "clover", "coach",
    "cobra",  "cocoa",  "coffee", "comet",  "copper", "coral",  "cotton", "cousin", "crab",
    "crane",  "crayon", "crown",  "cube",   "daisy",  "dance",  "deer",   "denim",  "desert",
    "diary",  "diesel", "dinner", "disco",  "donkey", "dragon", "drum",   "duck",   "eagle",
    "easel",  "echo",   "elbow",  "elder",  "enamel", "engine", "fabric", "falcon", "farmer",
    "fence",  "fiddle", "field",  "finger", "flag",   "flame",  "flute",  "forest", "fossil",
    "frost",  "fruit",  "galaxy", "garlic", "gate",   "ghost",  "giant",  "globe",  "goat",
    "gravel", "grill",  "guitar", "hammer", "harbor", "hazel",  "helmet", "heron",  "hiking",
    "honey",  "horse",  "hotel",  "hunter", "igloo",  "insect", "island", "ivory",  "jacket",
    "jaguar", "jelly",  "jewel",  "jungle", "kayak",  "kernel", "kettle", "kidney", "kiosk",
    "kitten", "koala",  "ladder", "lagoon", "lamp",   "laser",  "lava",   "lemon",  "letter",
    "lilac",  "lion",   "lizard", "lobby",  "lunar",  "magnet", "mango",  "maple",  "marble",
    "meadow", "melon",  "metal",  "mint",   "mirror", "motor",  "muffin", "museum", "nectar",
    "needle", "nickel", "ninja",  "noodle", "novel",  "nylon",  "oasis",  "ocean",  "olive",
    "onion",  "opera",  "orbit",  "otter",  "oven",   "oxygen", "oyster", "paddle", "palace",
    "panda",  "paper",  "pasta",  "peach",  "pebble", "pencil", "pepper", "piano",  "picnic",
    "pigeon", "pillow", "pilot",  "pirate", "planet", "plum",   "pocket", "poem",   "polar",
    "pony",   "potato", "prism",  "puppet", "puzzle", "quartz", "queen",  "quilt",  "rabbit",
    "radar",  "radish", "raven",  "ribbon", "river",  "robin",  "robot",  "rodeo",  "ruby",
    "salad",  "salmon", "satin",  "scarf",  "school", "shadow", "shelf",  "silver", "siren",
    "skate",  "snail",  "soap",   "sofa",   "spoon",  "squid",  "stamp",  "sugar",  "swan",
    "syrup",  "thumb",  "tiger",  "toast",  "tulip",  "uncle",  "urban",  "wagon",  "whale",
    "wheat",  "wolf",   "yacht",  "zebra",
};
static_assert(std::ranges::is_sorted(kWords));

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::vector<std::string> words_in(std::string_view text) {
  constexpr std::string_view kBetween = " \t\r\n-";
  std::vector<std::string> words;
  for (;;) {
    const auto begin = text.find_first_not_of(kBetween);
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const auto end = std::min(text.find_first_of(kBetween), text.size());
    words.push_back(lower(text.substr(0, end)));
    text.remove_prefix(end);
  }
}

}  // namespace

std::string draw_code() {
  ensure_sodium();
  std::array<std::string_view, kWordsInCode> drawn;
  for (auto& word : drawn) word = kWords[randombytes_uniform(kWords.size())];
  return fmt::format("{}", fmt::join(drawn, "-"));
}

std::string parse_code(std::string_view typed) {
  const auto words = words_in(typed);
  if (words.size() != kWordsInCode) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a code has {} words, and this has {}: type the one that the other "
                            "machine shows, as in \"{}\"",
                            kWordsInCode, words.size(),
                            fmt::join(kWords.begin(), kWords.begin() + kWordsInCode, "-")));
  }
  for (const auto& word : words) {
    if (std::ranges::binary_search(kWords, std::string_view(word))) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("no code has the word '{}': did you mean '{}'?", word.substr(0, 32),
                            nearest_name(word.substr(0, 32), kWords)));
  }
  return fmt::format("{}", fmt::join(words, "-"));
}

std::span<const std::string_view> code_words() {
  return kWords;
}

bool CodeIssuer::is_good(Clock::time_point now) const {
  return !used_ && wrong_ < kTries && now - made_ < kLifetime;
}

std::chrono::seconds CodeIssuer::until_next(Clock::time_point now) const {
  if (used_ || wrong_ < kTries || now - made_ >= kLifetime) return {};
  return std::chrono::ceil<std::chrono::seconds>(made_ + kLifetime - now);
}

std::optional<std::string> CodeIssuer::renew(Clock::time_point now) {
  if (is_good(now) || until_next(now).count() > 0) return std::nullopt;
  code_ = draw_code();
  made_ = now;
  ++number_;
  wrong_ = 0;
  used_ = false;
  return code_;
}

std::optional<CodeIssuer::Good> CodeIssuer::good(Clock::time_point now) const {
  if (!is_good(now)) return std::nullopt;
  return Good{code_, number_};
}

bool CodeIssuer::use(int number, Clock::time_point now) {
  if (number != number_ || !is_good(now)) return false;
  used_ = true;
  return true;
}

int CodeIssuer::wrong(int number) {
  if (number == number_ && wrong_ < kTries) ++wrong_;
  return number == number_ ? kTries - wrong_ : 0;
}

}  // namespace bimetal::net
