#pragma once
// Computes the answers of a server, on a thread of its own: batches of samples (below), or texts
// (TextAnswering). Private to the server and its sessions.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "bimetal/base/error.h"
#include "bimetal/serving/batcher.h"
#include "bimetal/serving/message.h"
#include "bimetal/serving/server.h"

namespace bimetal::serving {

/// How often the computing thread looks whether it is to end.
inline constexpr std::chrono::milliseconds kLookForTheEnd{100};

class Answering {
 public:
  virtual ~Answering() = default;

  /// Computes until `stopping`.
  virtual void run(const std::atomic<bool>& stopping) = 0;

  /// How many clients there are. Thread-safe, as is the next.
  virtual void set_clients(std::size_t /*clients*/) {}
  /// That client wants nothing more.
  virtual void forget(std::uint64_t client) = 0;
};

/// Why there is no answer, as a client is to be told.
Error as_served_error(const std::exception& failure);

// Answers requests of samples in batches. Private to server.cpp.

class BatchAnswering final : public Answering {
 public:
  /// Both must outlive it. Error(Unsupported) for a model of which no sample fits a request.
  BatchAnswering(const BatcherOptions& options, Model& model, Recorder& recorder);

  Batcher& batcher() noexcept { return waiting_; }

  void run(const std::atomic<bool>& stopping) override;
  void set_clients(std::size_t clients) override { waiting_.set_clients(clients); }
  void forget(std::uint64_t client) override;

 private:
  void answer(const Batch& batch);
  void fail(const Batch& batch, const Error& why);

  Model& model_;
  const std::size_t classes_;
  Recorder& recorder_;
  Batcher waiting_;
};

// Goes on with the texts of several clients: a token for each in turn, so that a long text holds up
// the others by a token each time. Private to the server and its sessions.

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
    TextPiece piece;        ///< to be told next
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
