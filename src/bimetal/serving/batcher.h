#pragma once
// Puts requests of several clients together into batches, and takes large ones apart. Thread-safe:
// one thread adds, another computes.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/serving/message.h"

namespace bimetal::serving {

/// Clients from this number on ask once, and by no connection that a batcher counts.
inline constexpr std::uint64_t kFirstGuest = std::uint64_t{1} << 63;

struct BatcherOptions {
  std::int64_t max_batch = 256;  ///< samples that are computed at once
  /// How long the first request of a batch waits for others to come, though nothing is computed. 0:
  /// a batch has the requests that came while the last one was computed.
  std::chrono::microseconds max_delay{0};
  /// Samples that may wait; beyond it a request is turned away. A lone request of any size is
  /// taken.
  std::int64_t max_waiting = 16384;
};

/// One client's question, and the answer as it comes together.
struct Request {
  std::uint64_t client = 0;  ///< which one asks
  comm::DType dtype = comm::DType::uint8;
  std::int64_t samples = 0;
  std::vector<std::byte> values;
  std::chrono::steady_clock::time_point arrived{};
  /// Called once, by the thread that computes: with the answer in `predicted`, or with the reason
  /// why there is none.
  std::function<void(Request&, const std::optional<Error>&)> done;

  Predicted predicted;
  std::int64_t taken = 0;     ///< samples that are in batches
  std::int64_t answered = 0;  ///< samples whose logits are in `predicted`
};

/// Some of a request's samples.
struct Part {
  std::shared_ptr<Request> request;
  std::int64_t first = 0, samples = 0;
};
using Batch = std::vector<Part>;

class Batcher {
 public:
  explicit Batcher(const BatcherOptions& options) : options_(options) {}

  /// Room for a request of that size, which is on its way: false if too many wait already.
  bool reserve(std::int64_t samples);
  /// It has not come after all.
  void release(std::int64_t samples);
  /// It is here. Room must have been reserved for it.
  void add(std::shared_ptr<Request> request);

  /// How many clients there are: nobody waits for more requests once each of them has one here.
  void set_clients(std::size_t clients);

  /// The next batch of at most max_batch samples; a request that does not fit is continued in later
  /// ones, after those that came meanwhile. Nothing at the deadline.
  std::optional<Batch> next(Deadline deadline);

  /// Forgets waiting requests for which `which` is true, or the rest of them.
  void forget(const std::function<bool(const Request&)>& which);
  /// Forgets all requests that wait, and returns them.
  std::vector<std::shared_ptr<Request>> drain();

  std::int64_t waiting() const;

 private:
  bool due(std::chrono::steady_clock::time_point now) const;
  std::int64_t queued_samples() const;
  bool everybody_asks() const;

  const BatcherOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Request>> queue_;
  std::int64_t waiting_ = 0;  ///< samples, those on their way included
  std::size_t clients_ = 0;
};

}  // namespace bimetal::serving
