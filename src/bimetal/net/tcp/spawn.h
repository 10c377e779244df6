#pragma once
// Coroutines for which nobody waits. With asio::detached, an exception that ends one would be lost.
// Here it is always reported.

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <exception>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::net {

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
