#pragma once
// Between torch's own distributed parts and ours: its store behind Bimetal's Store interface, and
// our errors as torch's.

#include <c10/util/Exception.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/failure.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::c10d {

/// Connects as a client to the c10d::TCPStore at `server`. Keys get `prefix`, which keeps them
/// apart from torch's own. `local_address` is what Store::local_address answers. Errors: Timeout
/// or System naming the address.
std::unique_ptr<rendezvous::Store> connect_tcp_store(const net::Endpoint& server,
                                                     std::string prefix, std::string local_address,
                                                     Deadline deadline);

// Any of torch's key-value stores behind Bimetal's Store interface. Used to exchange addresses:
// torch's stores neither authenticate nor encrypt, so that no secret may stand there.

/// `name` stands for the store in messages: "torchrun's store at 10.0.0.2:29500". `local_address`
/// is what Store::local_address answers. Each call is bounded by torch's own time limit of the
/// store, waiting for a key by the deadline. Errors: Timeout naming the key; System with the first
/// line of torch's error.
std::unique_ptr<rendezvous::Store> adapt_store(c10::intrusive_ptr<::c10d::Store> store,
                                               std::string name, std::string local_address);

/// The first line of one of torch's errors; a stack trace follows it.
std::string first_line(const std::exception& error);

/// Reaches Python as bimetal.Error where the package's own bindings see it, else as its base
/// torch.distributed.DistBackendError (as from DDP's backward). The message ends with the code and
/// the rank: "… [peer_lost, rank 2]".
class BackendError : public c10::DistBackendError {
 public:
  explicit BackendError(const bimetal::Error& error);

  ErrorCode code() const noexcept { return code_; }
  /// Global rank that the error is about, if one is.
  std::optional<int> rank() const noexcept { return rank_; }

 private:
  ErrorCode code_;
  std::optional<int> rank_;
};

/// The exception as an operation's failure: Internal if it is not an Error.
comm::Failure failure_of(const std::exception_ptr& thrown);

/// Runs `call`; a bimetal::Error leaves as a BackendError.
template <typename Call>
decltype(auto) guarded(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const Error& error) {
    throw BackendError(error);
  }
}

}  // namespace bimetal::c10d
