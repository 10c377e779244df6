#pragma once
// The code of four short words that a shared job shows, and that is typed on the machine that
// comes: the password of the exchange (cpace.h). 256 words, so 32 bits: who tries five times has
// one chance in 850 million.

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace bimetal::net {

/// Four words drawn at random, as "amber-cello-frost-tulip".
std::string draw_code();

/// Brings a typed code into the form of draw_code(). Its words may be separated by blanks or
/// hyphens, in any case. Error(InvalidArgument) for another number of words, and for a word that is
/// in no code, with the most similar one.
std::string parse_code(std::string_view typed);

/// All words that codes are made of, sorted.
std::span<const std::string_view> code_words();

/// Which code is good. One that has let a machine in is good for no other; each is good for two
/// minutes, and after five wrong tries for none. Another one may be made once the last one is used
/// or its two minutes are over, so that there are never more than five guesses in two minutes.
class CodeIssuer {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLifetime{120};
  static constexpr int kTries = 5;

  /// A new code, unless there is a good one, or none may be made yet.
  std::optional<std::string> renew(Clock::time_point now);

  struct Good {
    std::string code;
    int number;  ///< of this code: what used() and wrong() take
  };
  std::optional<Good> good(Clock::time_point now) const;

  /// Whether code `number` is still good. It is for nobody else then.
  bool use(int number, Clock::time_point now);

  /// Somebody has tried another one in its place. Returns how many tries are left.
  int wrong(int number);

  /// Until renew() may make another one; 0 if it may, or need not.
  std::chrono::seconds until_next(Clock::time_point now) const;

 private:
  bool is_good(Clock::time_point now) const;

  std::string code_;
  Clock::time_point made_{};
  int number_ = 0;
  int wrong_ = 0;
  bool used_ = true;
};

}  // namespace bimetal::net
