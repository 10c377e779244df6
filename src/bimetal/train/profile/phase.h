#pragma once
// What a step is doing, marked for a profile.

#include <ATen/record_function.h>

namespace bimetal::train {

/// Until its end this thread is in the phase `name`, one of those here; phases do not nest.
/// Costs a few nanoseconds where nobody profiles.
class Phase {
 public:
  static constexpr const char* kData = "bimetal::data";
  static constexpr const char* kForward = "bimetal::forward";
  static constexpr const char* kBackward = "bimetal::backward";
  static constexpr const char* kWait = "bimetal::wait";
  static constexpr const char* kUpdate = "bimetal::update";

  explicit Phase(const char* name) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) record_.before(name);
  }

 private:
  at::RecordFunction record_;
};

template <typename Work>
auto in_phase(const char* name, const Work& work) {
  const Phase phase(name);
  return work();
}

}  // namespace bimetal::train
