#pragma once
// What computes the answers of a server, on a thread of its own: batches of samples
// (below), or texts (text_answering.h). Private to the server and its sessions.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>

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

}  // namespace bimetal::serving
