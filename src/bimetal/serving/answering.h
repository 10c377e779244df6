#pragma once
// What computes the answers of a server, on a thread of its own: batches of samples
// (batch_answering.h), or texts (text_answering.h). Private to the server and its sessions.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "bimetal/base/error.h"
#include "bimetal/serving/message.h"

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

}  // namespace bimetal::serving
