#include "bimetal/launch/job_store.h"

#include <chrono>

#include "bimetal/base/error.h"

namespace bimetal::launch {
namespace {

constexpr std::chrono::seconds kWhenHurried{1};

}  // namespace

template <typename Call>
auto JobStore::ask(Call call, Deadline deadline) {
  if (!hurried_) return call(deadline);
  if (silent_) {
    throw Error(ErrorCode::PeerLost, "the job's first machine does not answer any more");
  }
  try {
    return call(min(deadline, Deadline::after(kWhenHurried)));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Timeout) silent_ = true;
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
