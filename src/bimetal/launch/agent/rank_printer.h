#pragma once
// The ranks' lines on their way to this process's standard output and standard error.

#include <string_view>

#include "bimetal/launch/agent/outgoing_bytes.h"
#include "bimetal/launch/agent/rank_output.h"
#include "bimetal/launch/system/wait_set.h"

namespace bimetal::launch {

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
