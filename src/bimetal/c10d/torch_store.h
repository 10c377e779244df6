#pragma once
// torch's own key-value store, which torchrun's agent serves, behind Bimetal's Store interface.
// Used to exchange addresses only: it neither authenticates nor encrypts, so no secret goes in.

#include <exception>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bimetal/base/deadline.h"
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

}  // namespace bimetal::c10d
