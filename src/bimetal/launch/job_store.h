#pragma once
// The store of a job on several machines as its launchers use it. A machine that a failure has cut
// off must not keep the others' prompts waiting.

#include <atomic>
#include <memory>

#include "bimetal/rendezvous/store.h"

namespace bimetal::launch {

/// As the store that it holds, until the job fails (hurry()): a call then waits for 0.4 s at most,
/// and once two in a row have waited in vain for the store's machine all others end at once, with
/// Error(PeerLost). Together that is less than the second after which a prompt is to come back.
class JobStore final : public rendezvous::Store {
 public:
  explicit JobStore(std::unique_ptr<rendezvous::Store> store) : store_(std::move(store)) {}

  /// The job has failed: what is still to be told is worth no long wait.
  void hurry() noexcept { hurried_ = true; }

  void set(std::string_view key, std::string_view value, Deadline deadline) override;
  std::string get(std::string_view key, Deadline deadline) override;
  std::optional<std::string> try_get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  std::string local_address() const override { return store_->local_address(); }

 private:
  template <typename Call>
  auto ask(Call call, Deadline deadline);

  std::unique_ptr<rendezvous::Store> store_;
  std::atomic<bool> hurried_ = false;
  std::atomic<int> in_vain_ = 0;  ///< calls in a row
};

}  // namespace bimetal::launch
