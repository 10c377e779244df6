#include <gtest/gtest.h>

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/use_awaitable.hpp>
#include <new>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bimetal/net/tcp/handlers.h"

namespace bimetal::net {
namespace {

TEST(RunHandlers, WhatOneThrowsReachesSomebodyAndTheOthersGoOn) {
  asio::io_context io;
  int went_on = 0;
  asio::post(io, [] { throw std::bad_alloc(); });
  asio::post(io, [&] { ++went_on; });
  asio::post(io, [] { throw std::logic_error("odd"); });
  asio::post(io, [&] { ++went_on; });
  std::vector<ErrorCode> told;
  run_handlers(io, [&](const Error& error) { told.push_back(error.code()); });
  EXPECT_EQ(told, (std::vector{ErrorCode::OutOfMemory, ErrorCode::Internal}));
  EXPECT_EQ(went_on, 2);
}

TEST(RunHandlers, NotEvenItsOwnFailureEndsTheProcess) {
  asio::io_context io;
  int went_on = 0;
  asio::post(io, [] { throw std::bad_alloc(); });
  asio::post(io, [&] { ++went_on; });
  run_handlers(io, [](const Error&) { throw std::bad_alloc(); });
  EXPECT_EQ(went_on, 1);
}

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
