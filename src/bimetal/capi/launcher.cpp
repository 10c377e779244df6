// What a rank has to do with whoever started it.

#include "bimetal/capi/boundary.h"
#ifndef _WIN32
#include "bimetal/launch/local/process.h"
#endif

using namespace bimetal;

extern "C" std::int32_t bimetal_end_with_launcher(void) {
  return capi::guarded([] {
#ifndef _WIN32
    launch::end_with_launcher();
#endif
  });
}
