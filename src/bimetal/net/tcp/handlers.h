#pragma once
// The loop of the threads that carry bytes. An exception that leaves a handler, usually for lack of
// memory, would end the whole process without a message. Here it is reported, as below.
//
// Coroutines for which nobody waits. With asio::detached, an exception that ends one would be lost.
// Here it is always reported.

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <exception>
#include <new>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::net {

/// Runs the handlers of `io` until there are none left. An exception from a handler goes to
/// `failed(Error)`, on this thread, and the other handlers go on.
template <typename Failed>
void run_handlers(asio::io_context& io, Failed failed) noexcept {
  const Error no_memory = to_error(std::bad_alloc());  // made while there is some
  for (;;) {
    try {
      try {
        io.run();
        return;
      } catch (const std::bad_alloc&) {
        failed(no_memory);
      } catch (...) {
        failed(to_error(std::current_exception()));
      }
    } catch (...) {
      // Nobody can be told; waiting threads wait until a deadline.
    }
  }
}

/// Starts `work` on `where`, an executor or an io_context. An exception goes to `failed(Error)`, on
/// the thread that runs the coroutine; what `failed` holds lives as long as that.
template <typename Where, typename Failed>
void spawn(Where&& where, asio::awaitable<void> work, Failed failed) {
  asio::co_spawn(std::forward<Where>(where), std::move(work),
                 [failed = std::move(failed)](const std::exception_ptr& failure) {
                   if (failure) failed(to_error(failure));
                 });
}

}  // namespace bimetal::net
