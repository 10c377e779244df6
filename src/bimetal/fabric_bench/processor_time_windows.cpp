#include <windows.h>

#include "bimetal/fabric_bench/processor_time.h"

namespace bimetal::fabric_bench {

double processor_seconds() {
  FILETIME begun, ended, system, user;
  if (!GetProcessTimes(GetCurrentProcess(), &begun, &ended, &system, &user)) return 0;
  const auto of = [](const FILETIME& time) {  // steps of 100 ns
    return 1e-7 * (4294967296.0 * time.dwHighDateTime + time.dwLowDateTime);
  };
  return of(system) + of(user);
}

}  // namespace bimetal::fabric_bench
