#pragma once
// How C++ meets C here: the handles, and errors as codes. Private to this folder, and to python/,
// which takes its handles.
//
// The contents of a store's handle. Private to this folder.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/capi/bimetal_c.h"
#include "bimetal/comm/group.h"
#include "bimetal/rendezvous/store.h"

struct bimetal_group {
  bimetal::comm::Group group;
};

struct bimetal_work {
  bimetal::comm::Work work;
};

struct bimetal_store {
  std::unique_ptr<bimetal::rendezvous::Store> store;
};

namespace bimetal::capi {

/// The status of an error. This thread remembers the error's text.
std::int32_t status_of(const std::exception_ptr& error) noexcept;

/// The way back; nothing where a status is no error's.
std::optional<ErrorCode> code_of(std::int32_t status) noexcept;

/// Runs `call`, whose errors become a status; nothing leaves it.
template <typename Call>
std::int32_t guarded(Call&& call) noexcept {
  try {
    call();
    return BIMETAL_OK;
  } catch (...) {
    return status_of(std::current_exception());
  }
}

/// Error(InvalidArgument) where an argument is missing.
void require(const void* argument, const char* what);

/// The structure that a caller gives. Error(InvalidArgument) where it is missing, or an older and
/// shorter one.
template <typename Structure>
const Structure& required(const Structure* given, const char* name) {
  require(given, name);
  if (given->struct_size < sizeof(Structure)) {
    throw Error(ErrorCode::InvalidArgument,
                std::string("struct_size of ") + name + " is too small: it is to be its sizeof");
  }
  return *given;
}

/// Keeps the text for this thread until the next, and returns where it stands.
const std::string& keep_text(std::string text);

inline std::chrono::milliseconds milliseconds(std::int64_t count) {
  // More than a year is as good as for ever, and does not overflow a clock.
  constexpr std::int64_t kYear = std::int64_t{366} * 24 * 3600 * 1000;
  return std::chrono::milliseconds(count < 0 || count > kYear ? kYear : count);
}

inline Deadline after(std::int64_t timeout_ms) {
  return Deadline::after(milliseconds(timeout_ms));
}

template <typename T>
std::span<const T> list(const T* values, std::int64_t count) {
  return values == nullptr ? std::span<const T>()
                           : std::span(values, static_cast<std::size_t>(count));
}

}  // namespace bimetal::capi
