#include <array>
#include <new>
#include <optional>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/base/release.h"
#include "bimetal/capi/boundary.h"

namespace bimetal::capi {
namespace {

struct Failure {
  std::string text;
  std::int32_t rank = -1;
};

thread_local Failure last_failure;
thread_local std::string kept_text;

constexpr auto kLastCode = ErrorCode::Internal;

std::int32_t remember(ErrorCode code, const char* text, std::optional<int> rank) noexcept {
  try {
    last_failure.text = text;
  } catch (const std::bad_alloc&) {
    last_failure.text.clear();
  }
  last_failure.rank = rank.value_or(-1);
  return static_cast<std::int32_t>(code) + 1;
}

LogLevel level_named(std::string_view name) {
  for (const auto level :
       {LogLevel::trace, LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error}) {
    if (to_string(level) == name) return level;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("'{}' is none of trace, debug, info, warning and error", name));
}

}  // namespace

std::int32_t status_of(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const Error& ours) {
    return remember(ours.code(), ours.what(), ours.rank());
  } catch (const std::bad_alloc&) {
    return remember(ErrorCode::OutOfMemory, "there is no memory left", std::nullopt);
  } catch (const std::exception& other) {
    return remember(ErrorCode::Internal, other.what(), std::nullopt);
  } catch (...) {
    return remember(ErrorCode::Internal, "an error of an unknown kind", std::nullopt);
  }
}

std::optional<ErrorCode> code_of(std::int32_t status) noexcept {
  if (status <= 0 || status - 1 > static_cast<std::int32_t>(kLastCode)) return std::nullopt;
  return static_cast<ErrorCode>(status - 1);
}

void require(const void* argument, const char* what) {
  if (argument != nullptr) return;
  throw Error(ErrorCode::InvalidArgument, fmt::format("{} is missing: NULL was given", what));
}

const std::string& keep_text(std::string text) {
  kept_text = std::move(text);
  return kept_text;
}

}  // namespace bimetal::capi

using namespace bimetal;

extern "C" {

std::int32_t bimetal_abi_version(void) {
  return BIMETAL_ABI_VERSION;
}

const char* bimetal_release(void) {
  return release().data();  // of a literal
}

const char* bimetal_error_name(std::int32_t status) {
  if (status == BIMETAL_OK) return "ok";
  if (status == BIMETAL_PENDING) return "pending";
  const auto code = capi::code_of(status);
  return code ? to_string(*code).data() : "unknown";
}

const char* bimetal_error_text(void) {
  return capi::last_failure.text.c_str();
}

std::int32_t bimetal_error_rank(void) {
  return capi::last_failure.rank;
}

std::int32_t bimetal_set_log(const char* level, bimetal_log_sink sink, void* context) {
  return capi::guarded([&] {
    if (sink == nullptr) {
      set_log_sink({});
      return;
    }
    capi::require(level, "the level");
    set_log_sink(
        [sink, context](LogLevel of, std::string_view message) {
          sink(context, to_string(of).data(), std::string(message).c_str());
        },
        capi::level_named(level));
  });
}

}  // extern "C"
