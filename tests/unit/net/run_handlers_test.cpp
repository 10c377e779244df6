#include "bimetal/net/tcp/run_handlers.h"

#include <gtest/gtest.h>

#include <asio/post.hpp>
#include <new>
#include <stdexcept>
#include <vector>

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

}  // namespace
}  // namespace bimetal::net
