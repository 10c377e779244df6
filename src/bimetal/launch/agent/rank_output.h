#pragma once
// The output of many ranks, as lines on one terminal: each whole, with its rank in front, and none
// keeping the launcher from its work.

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

  /// Text that has come without a line end.
  std::string rest();

  /// Whether a line told that Python has found no module of some name.
  bool misses_module() const noexcept { return misses_module_; }

 private:
  void end_line(std::string& lines, bool rewritten);

  std::string prefix_, partial_;
  bool after_return_ = false, misses_module_ = false;
  std::chrono::steady_clock::time_point next_rewritten_{};
};

/// Holds tracebacks back that may follow from another rank's: when a rank fails, the others soon do
/// for want of it, and only the first one's output is worth reading.
class Tracebacks {
 public:
  /// The part of `lines` to show on standard error, each with its end; `prefix` begins each.
  std::string take(int rank, std::string_view prefix, std::string_view lines);

  /// The rank has printed something else. One that goes on after a traceback has caught it.
  void note_other_lines(int rank);

  /// Lines that were held back for nothing: nobody has failed for a while or, with `all`, nobody
  /// will.
  std::string release(bool all);

  /// The job has failed because of this rank. Returns the lines to show now.
  std::string name_cause(int rank);

  /// The rank whose traceback is newest among those that follow from no other's.
  std::optional<int> first_to_complain() const;

  /// Ranks whose tracebacks are not shown, since they followed from the cause's.
  std::vector<int> left_out() const;

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Held {
    Time since;
    std::string lines;
  };

  bool holds_back(int rank, bool begins);
  void note_line(int rank, std::optional<Time> before);

  std::optional<std::pair<int, Time>> first_;
  std::map<int, Time> last_line_;  ///< of standard error
  std::map<int, Held> held_;
  std::optional<int> cause_;
};

/// All ranks' lines for one stream of the launcher.
class RankOutput {
 public:
  /// Without `prefixed`, lines come as they are.
  explicit RankOutput(bool prefixed) : prefixed_(prefixed) {}

  /// The lines to print now.
  std::string take(int rank, OutputStream stream, std::string_view bytes);

  /// Text that a rank which has ended leaves without a line end.
  std::string rest_of(int rank, OutputStream stream);

  /// Whether the rank's Python has said that it found no module of some name.
  bool misses_module(int rank) const;

  Tracebacks& tracebacks() { return tracebacks_; }
  const Tracebacks& tracebacks() const { return tracebacks_; }

 private:
  LineCutter& cutter(int rank, OutputStream stream);
  std::string shown(int rank, OutputStream stream, std::string lines);

  bool prefixed_;
  Tracebacks tracebacks_;
  std::map<std::pair<int, OutputStream>, LineCutter> cutters_;
};

/// Never waits for a reader. Use from one thread.
class RankPrinter {
 public:
  /// See RankOutput.
  explicit RankPrinter(bool prefixed) : lines_(prefixed) {}

  void take(int rank, OutputStream stream, std::string_view bytes);

  /// The rank has ended: its output without a line end is its last line.
  void end(int rank);

  /// See RankOutput.
  bool misses_module(int rank) const { return lines_.misses_module(rank); }

  /// See Tracebacks.
  std::optional<int> first_to_complain() const { return lines_.tracebacks().first_to_complain(); }
  void name_cause(int rank) { errors_.push(lines_.tracebacks().name_cause(rank)); }
  /// Once all have ended. Ranks whose tracebacks are left out.
  std::vector<int> end();

  /// Whether more may come: unread output is kept in memory.
  bool has_room() const noexcept;
  bool empty() const noexcept { return out_.empty() && errors_.empty(); }

  /// Prints as much as goes without waiting; add_to() tells the descriptors to wait for.
  void print();
  void add_to(WaitSet& news) const;

  /// Drops the present output and all later output.
  void mute();

 private:
  RankOutput lines_;
  OutgoingBytes out_, errors_;
  bool muted_ = false;
};

}  // namespace bimetal::launch
