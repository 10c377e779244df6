#pragma once
// A store of somebody else's that can tell what there is, but should not be asked to wait.

#include <string>

#include "bimetal/rendezvous/store.h"

namespace bimetal::rendezvous {

/// Waits by asking in turns: another store's own wait may hold its connection, and other threads
/// with it. What is left to the derived class is set, try_get, add and local_address.
class PolledStore : public Store {
 public:
  /// `name` stands for the store in messages.
  explicit PolledStore(std::string name) : name_(std::move(name)) {}

  std::string get(std::string_view key, Deadline deadline) final;

 protected:
  const std::string& name() const noexcept { return name_; }

 private:
  std::string name_;
};

}  // namespace bimetal::rendezvous
