#include "bimetal/comm/wait_for_all.h"

#include <exception>

namespace bimetal::comm {

void wait_for_all(std::span<const Work> works) {
  std::exception_ptr first;
  for (const auto& work : works) {
    try {
      work.wait();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace bimetal::comm
