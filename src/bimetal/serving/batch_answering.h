#pragma once
// Answers requests of samples in batches. Private to server.cpp.

#include "bimetal/serving/answering.h"
#include "bimetal/serving/batcher.h"
#include "bimetal/serving/recorder.h"
#include "bimetal/serving/server.h"

namespace bimetal::serving {

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
