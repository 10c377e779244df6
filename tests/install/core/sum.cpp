#include <bimetal/core.h>

#include <cstdio>
#include <vector>

int main() {
  auto group = bimetal::launch::single_process_world();
  std::vector<float> values = {1, 2, 3};
  group.all_reduce(bimetal::comm::buffer(values)).wait();
  const auto shares = bimetal::balance::weighted_shares(std::vector<double>{3, 1}, 64);
  try {
    bimetal::balance::equal_shares(0, 64);
  } catch (const bimetal::Error& error) {
    std::printf("%g %g %g, %ld + %ld, %s\n", values[0], values[1], values[2],
                static_cast<long>(shares[0]), static_cast<long>(shares[1]),
                bimetal::to_string(error.code()).data());
  }
}
