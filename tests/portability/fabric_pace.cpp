#include "portability/fabric_pace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "bimetal/base/deadline.h"

namespace bimetal::testing {
namespace {

struct Size {
  std::size_t bytes;
  int calls;
};

constexpr std::array<Size, 3> kSizes{{{4 << 10, 300}, {1 << 20, 60}, {16 << 20, 12}}};

double median_of(std::vector<double> seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

}  // namespace

void measure_pace(comm::Group group, const std::function<void(const std::string&)>& say) {
  for (const auto& [bytes, calls] : kSizes) {
    std::vector<float> data(bytes / sizeof(float), 0.0f);
    std::vector<double> seconds;
    for (int call = -calls / 4; call < calls; ++call) {  // the first ones find their way
      const Stopwatch clock;
      group.all_reduce(comm::buffer(data)).wait();
      if (call >= 0) seconds.push_back(clock.seconds());
    }
    say(fmt::format("pace {}: {:.1f}", bytes, median_of(std::move(seconds)) * 1e6));
  }
}

}  // namespace bimetal::testing
