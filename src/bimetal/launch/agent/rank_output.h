#pragma once
// What many ranks print, as lines on one terminal: each whole, with its rank in front, and none
// keeping the launcher from its work.

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "bimetal/launch/local/pipe.h"

namespace bimetal::launch {

/// Standard output or standard error of a rank.
enum class OutputStream { out, errors };

/// Cuts the bytes of one rank's stream into lines.
class LineCutter {
 public:
  explicit LineCutter(std::string prefix) : prefix_(std::move(prefix)) {}

  /// The whole lines that these bytes complete, each with the prefix and a line end. A line that a
  /// program rewrites in place (a progress bar, ending in "\r") becomes one line per second at
  /// most.
  std::string take(std::string_view bytes);

  /// What has come without a line end.
  std::string rest();

  /// Whether a line told that Python has found no module of some name.
  bool misses_module() const noexcept { return misses_module_; }

 private:
  void end_line(std::string& lines, bool rewritten);

  std::string prefix_, partial_;
  bool after_return_ = false, misses_module_ = false;
  std::chrono::steady_clock::time_point next_rewritten_{};
};

/// All ranks' lines for one stream of the launcher.
class RankOutput {
 public:
  /// Without `prefixed`, lines come as they are.
  explicit RankOutput(bool prefixed) : prefixed_(prefixed) {}

  /// The lines to print now.
  std::string take(int rank, OutputStream stream, std::string_view bytes);

  /// What a rank that has ended leaves without a line end.
  std::string rest_of(int rank, OutputStream stream);

  /// Whether the rank's Python has said that it found no module of some name.
  bool misses_module(int rank) const;

 private:
  LineCutter& cutter(int rank, OutputStream stream);

  bool prefixed_;
  std::map<std::pair<int, OutputStream>, LineCutter> cutters_;
};

/// Never waits for whoever reads. Use from one thread.
class RankPrinter {
 public:
  /// See RankOutput.
  explicit RankPrinter(bool prefixed) : lines_(prefixed) {}

  void take(int rank, OutputStream stream, std::string_view bytes);

  /// The rank has ended: what it has left without a line end is its last line.
  void end(int rank);

  /// See RankOutput.
  bool misses_module(int rank) const { return lines_.misses_module(rank); }

  /// Whether more may come: what has not been read yet is kept in memory.
  bool has_room() const noexcept;
  bool empty() const noexcept { return out_.empty() && errors_.empty(); }

  /// Prints what can be printed without waiting; add_to() says what to wait for.
  void print();
  void add_to(WaitSet& news) const;

  /// Drops what is there and all that comes.
  void mute();

 private:
  RankOutput lines_;
  OutgoingBytes out_, errors_;
  bool muted_ = false;
};

}  // namespace bimetal::launch
