#include "bimetal/net/tcp/spawn.h"

#include <gtest/gtest.h>

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/use_awaitable.hpp>
#include <new>
#include <optional>

namespace bimetal::net {
namespace {

asio::awaitable<void> fail_after_a_while(asio::io_context& io, bool fails) {
  co_await asio::post(io, asio::use_awaitable);
  if (fails) throw std::bad_alloc();
}

TEST(Spawn, WhatEndsACoroutineReachesSomebody) {
  for (const bool fails : {true, false}) {
    asio::io_context io;
    std::optional<Error> told;
    spawn(io, fail_after_a_while(io, fails), [&](const Error& error) { told = error; });
    io.run();
    ASSERT_EQ(told.has_value(), fails);
    if (told) {
      EXPECT_EQ(told->code(), ErrorCode::OutOfMemory);
    }
  }
}

}  // namespace
}  // namespace bimetal::net
