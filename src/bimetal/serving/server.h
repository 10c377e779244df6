#pragma once
// Answers what clients ask of a model. One thread moves bytes and another computes, so that neither
// waits for the other, and nobody who starts a server is held up by it.

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "bimetal/base/error.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/serving/batcher.h"
#include "bimetal/serving/message.h"

namespace bimetal::serving {

// Counts what a server does. Thread-safe.

class Recorder {
 public:
  void answered(std::int64_t samples, std::chrono::duration<double> latency);
  void computed_batch();
  void refused();
  void set_clients(std::size_t clients);
  Figures figures() const;

 private:
  mutable std::mutex mutex_;
  Figures counts_;
  std::array<double, 1000> latencies_{};  ///< a ring of the last ones
};

/// Samples of one type, back to back; `values` holds samples · values_per_sample() of them.
struct Samples {
  comm::DType dtype = comm::DType::uint8;
  std::int64_t count = 0;
  std::span<const std::byte> values;
};

/// The served model. Its calls come from one thread.
class Model {
 public:
  virtual ~Model() = default;

  /// Does not change. Called before anything is served.
  virtual ModelFacts facts() const = 0;

  /// Computes one batch, with the newest weights: `logits` gets classes values for each sample, in
  /// the order of `parts`. An exception is told to those who asked, and the server goes on.
  virtual WeightsVersion answer(std::span<const Samples> parts, std::span<double> logits) = 0;
};

/// One that grows, with the weights that it began with.
class Text {
 public:
  virtual ~Text() = default;
  /// The next token.
  virtual std::int64_t next() = 0;
  /// Optimizer steps that its weights have learnt from.
  virtual std::int64_t step() const = 0;
};

/// A language model that is served. Its calls, and those of its texts, come from one thread.
class Writer {
 public:
  virtual ~Writer() = default;

  /// Does not change. Called before anything is served.
  virtual ModelFacts facts() const = 0;

  /// Errors for texts that it cannot go on with. The client is told of them, as of those of next().
  virtual std::unique_ptr<Text> begin(const TextRequest& wanted) = 0;
};

struct TextOptions {
  std::size_t at_once = 8;       ///< texts that grow by turns
  std::size_t max_waiting = 64;  ///< texts that wait for their turn; more are turned away
};

struct ServerOptions {
  net::Endpoint listen;  ///< port 0: any
  net::Token token;      ///< none: loopback only
  net::Encryption encryption = net::Encryption::off;
  BatcherOptions batching;        ///< of a Model
  TextOptions texts;              ///< of a Writer
  std::size_t max_clients = 256;  ///< more are turned away
};

/// Thread-safe.
class Server {
 public:
  /// Listens and serves. `model` or `writer` must outlive the server. Errors: those of
  /// net::Listener; Unsupported for a model of which no sample fits a request.
  Server(const ServerOptions& options, Model& model);
  Server(const ServerOptions& options, Writer& writer);
  /// Tells clients that wait that the server ends; waits for the batch that is being computed.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The address at which it listens, with the real port.
  net::Endpoint endpoint() const;

  Figures figures() const;

  /// The facts of the served model.
  const ModelFacts& facts() const;

  /// A question that comes by no connection of this server's: computed together with those that do.
  /// `done` is called by the thread that computes, with the answer or the reason that there is
  /// none; not if the server ends before. False: too many samples wait already, and nothing is
  /// done. Error(InvalidArgument) for a request that is none of this model.
  bool ask(std::shared_ptr<Request> request);

  /// The same of a text: `tell` and `awaited` as TextJob has them.
  bool write(TextRequest wanted, std::function<void(TextPiece, const std::optional<Error>&)> tell,
             std::function<bool()> awaited = {});

  /// The error that has ended the serving; nothing while it goes on.
  std::optional<Error> failure() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::serving
