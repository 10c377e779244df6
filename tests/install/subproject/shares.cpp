#include <bimetal/balance/balancer.h>

#include <cstdio>

int main() {
  const auto shares = bimetal::balance::equal_shares(2, 64);
  std::printf("%ld + %ld\n", static_cast<long>(shares[0]), static_cast<long>(shares[1]));
}
