#include "bimetal/launch/job_store.h"

#include <chrono>
#include <type_traits>

#include "bimetal/base/error.h"

namespace bimetal::launch {
namespace {

constexpr std::chrono::milliseconds kWhenHurried{400};
constexpr int kMostInVain = 2;

}  // namespace

template <typename Call>
auto JobStore::ask(Call call, Deadline deadline) {
  if (!hurried_) return call(deadline);
  if (in_vain_ >= kMostInVain) {
    throw Error(ErrorCode::PeerLost, "the job's first machine does not answer any more");
  }
  try {
    if constexpr (std::is_void_v<decltype(call(deadline))>) {
      call(min(deadline, Deadline::after(kWhenHurried)));
      in_vain_ = 0;
    } else {
      auto answer = call(min(deadline, Deadline::after(kWhenHurried)));
      in_vain_ = 0;
      return answer;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Timeout) ++in_vain_;
    throw;
  }
}

void JobStore::set(std::string_view key, std::string_view value, Deadline deadline) {
  ask([&](Deadline until) { store_->set(key, value, until); }, deadline);
}

/// Not hurried: that nobody has set a key looks the same as silence.
std::string JobStore::get(std::string_view key, Deadline deadline) {
  return store_->get(key, deadline);
}

std::optional<std::string> JobStore::try_get(std::string_view key, Deadline deadline) {
  return ask([&](Deadline until) { return store_->try_get(key, until); }, deadline);
}

std::int64_t JobStore::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  return ask([&](Deadline until) { return store_->add(key, delta, until); }, deadline);
}

}  // namespace bimetal::launch
