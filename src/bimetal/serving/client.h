#pragma once
// Asks a server of predictions: `bimetal serve`, or a training job with parameter servers.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/serving/message.h"

namespace bimetal::serving {

struct ClientOptions {
  net::Endpoint server;  ///< of the server itself, or of a job (`bimetal train --listen`)
  net::Token token;
  net::Encryption encryption = net::Encryption::off;
};

/// One connection, made when it is first needed and again after it was lost. Calls from one thread
/// at a time; each ends by its deadline. Errors of all: those of net::dial; Unsupported where a job
/// answers that serves no predictions; PeerLost, Timeout; Aborted where the server is busy or ends;
/// CorruptData for bytes that make no sense. After an error the next call connects anew.
class Client {
 public:
  explicit Client(const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// The facts of the served model.
  ModelFacts facts(Deadline deadline);

  /// Logits [samples, classes] of `samples` samples that lie back to back in `values`: uint8
  /// pixels, or float32 or float64 as the model takes them. Any number of samples: more than one
  /// request may have go in several. InvalidArgument where they are not of the model's shape.
  Predicted predict(std::span<const std::byte> values, comm::DType dtype, std::int64_t samples,
                    Deadline deadline);

  /// Some more of a text.
  using TextReader = std::function<void(const std::vector<std::int64_t>& tokens)>;

  /// Lets a language model go on with a text; `read` gets its tokens, piece by piece, on this
  /// thread and must not throw. Returns how many optimizer steps the weights have learnt from.
  /// InvalidArgument for impossible requests, with the server's reason, and from any other model.
  std::int64_t write(const TextRequest& wanted, const TextReader& read, Deadline deadline);

  /// The server's figures so far, for all its clients.
  Figures figures(Deadline deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::serving
