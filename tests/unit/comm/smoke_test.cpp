#include <gtest/gtest.h>

#include "support/thread_ranks.h"
namespace bimetal {
TEST(Smoke, Collectives) {
  for (int n : {1, 2, 3, 5, 8}) {
    for (std::size_t count : {0, 1, 7, 100003}) {
      testing::run_ranks(n, [&](int rank, comm::Group g) {
        std::vector<float> v(count, float(rank + 1));
        auto w = g.all_reduce(comm::buffer(v));
        w.wait();
        for (auto x : v) ASSERT_EQ(x, n * (n + 1) / 2);
        g.broadcast(comm::buffer(v), n - 1).wait();
        std::vector<float> in(count, rank), out(n * count);
        g.all_gather(comm::buffer(in), comm::buffer(out)).wait();
        for (int r = 0; r < n; ++r)
          for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(out[r * count + i], r);
        g.barrier().wait();
      });
    }
  }
}
}  // namespace bimetal
