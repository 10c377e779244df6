#pragma once
// The time from the first to the last exchange of a step, beside other computation.

#include <memory>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/work.h"

namespace bimetal::parallel {

/// From the sending of a step's first exchange to the end of its last one. Use from one thread at a
/// time; the exchanges may end on others.
class ExchangeSpan {
 public:
  ExchangeSpan();

  /// A step begins: nothing has been sent.
  void begin();
  /// `work` has just been sent.
  void watch(const comm::Work& work);

  /// So far in this step.
  double seconds() const noexcept;

 private:
  struct Ends;
  Deadline::Clock::time_point first_sent_;
  std::shared_ptr<Ends> ends_;
};

}  // namespace bimetal::parallel
