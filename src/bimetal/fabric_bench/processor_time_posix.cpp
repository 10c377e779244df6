#include <sys/resource.h>

#include "bimetal/fabric_bench/processor_time.h"

namespace bimetal::fabric_bench {

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

}  // namespace bimetal::fabric_bench
