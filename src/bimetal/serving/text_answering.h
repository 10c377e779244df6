#pragma once
// Goes on with the texts of several clients: a token for each in turn, so that a long text holds up
// the others by a token each time. Private to the server and its sessions.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "bimetal/serving/answering.h"
#include "bimetal/serving/server.h"

namespace bimetal::serving {

/// One client's text.
struct TextJob {
  std::uint64_t client = 0;
  TextRequest wanted = {};
  std::chrono::steady_clock::time_point arrived{};
  /// Called by the computing thread: with each piece, or once with why there are no more.
  std::function<void(TextPiece, const std::optional<Error>&)> tell;
  std::function<bool()> awaited = {};  ///< false: nobody waits for it any more; empty: always

  bool over() const { return awaited && !awaited(); }
};

class TextAnswering final : public Answering {
 public:
  /// Both must outlive it.
  TextAnswering(const TextOptions& options, Writer& writer, Recorder& recorder)
      : options_(options), writer_(writer), recorder_(recorder) {}

  /// False if too many wait already. Thread-safe.
  bool add(TextJob job);

  void run(const std::atomic<bool>& stopping) override;
  void forget(std::uint64_t client) override;

 private:
  struct Writing {
    TextJob job;
    std::unique_ptr<Text> text;
    std::int64_t left = 0;  ///< tokens
    TextPiece piece;        ///< what is to be told next
    std::chrono::steady_clock::time_point told;
  };

  void take_waiting();
  void begin(TextJob job);
  bool go_on(Writing& writing);
  void tell(Writing& writing);

  const TextOptions options_;
  Writer& writer_;
  Recorder& recorder_;
  std::list<Writing> writing_;  ///< of the computing thread

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TextJob> waiting_;
  std::set<std::uint64_t> gone_;  ///< clients whose texts are to end
};

}  // namespace bimetal::serving
