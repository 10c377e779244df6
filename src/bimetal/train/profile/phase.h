#pragma once
// The phases of a step, marked for a profile.

#include <ATen/record_function.h>

#include <concepts>
#include <string>

namespace bimetal::train {

/// Until its end this thread is in the phase `name`, one of those here; phases do not nest. Or, for
/// a trace alone, a mark of any other name within one. Costs a few nanoseconds where nobody
/// profiles.
class Phase {
 public:
  static constexpr const char* kData = "bimetal::data";
  static constexpr const char* kForward = "bimetal::forward";
  static constexpr const char* kBackward = "bimetal::backward";
  static constexpr const char* kBubble = "bimetal::bubble";
  static constexpr const char* kWait = "bimetal::wait";
  static constexpr const char* kUpdate = "bimetal::update";

  explicit Phase(const char* name) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) record_.before(name);
  }
  /// `make_name` is called where somebody profiles.
  template <std::invocable MakeName>
  explicit Phase(const MakeName& make_name) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) record_.before(std::string(make_name()));
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
