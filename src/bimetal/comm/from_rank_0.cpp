#include "bimetal/comm/from_rank_0.h"

#include <exception>
#include <span>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/to_error.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::comm {
namespace {

constexpr char kDone = 'd';
constexpr char kFailed = 'f';  // and the error's code, as a letter

std::string failure_text(const Error& error) {
  return std::string{kFailed, static_cast<char>('a' + static_cast<int>(error.code()))} +
         error.what();
}

Error parse_failure(const std::string& text) {
  const int code = text.size() > 1 ? text[1] - 'a' : -1;
  if (text.empty() || text[0] != kFailed || code < 0 ||
      code > static_cast<int>(ErrorCode::Internal)) {
    return {ErrorCode::CorruptData, "what rank 0 has sent makes no sense", 0};
  }
  return {static_cast<ErrorCode>(code), text.substr(2), 0};
}

/// Whoever fails may end the group next, which must not overtake what the others are being told.
void let_all_hear(Group group, Deadline deadline) {
  try {
    group.barrier(deadline).wait();
  } catch (const Error&) {  // the failure at hand is the one to tell
  }
}

}  // namespace

std::string from_rank_0(Group group, const std::function<std::string()>& action,
                        Deadline deadline) {
  std::string text;
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      text = kDone + action();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      text = failure_text(to_error(error));
    }
  }
  const auto bytes = std::as_bytes(std::span(text));
  const auto sent = broadcast_bytes(group, {bytes.begin(), bytes.end()}, 0, deadline);
  text.assign(reinterpret_cast<const char*>(sent.data()), sent.size());
  if (!text.empty() && text[0] == kDone) return text.substr(1);
  // Only of what rank 0 knows to be a failure does it wait for the others, too.
  if (!text.empty() && text[0] == kFailed) let_all_hear(std::move(group), deadline);
  if (failure) std::rethrow_exception(failure);
  throw parse_failure(text);
}

void on_rank_0(Group group, const std::function<void()>& action, Deadline deadline) {
  const auto with_no_words = [&] {
    action();
    return std::string();
  };
  from_rank_0(std::move(group), with_no_words, deadline);
}

}  // namespace bimetal::comm
