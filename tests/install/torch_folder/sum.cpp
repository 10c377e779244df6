#include <ATen/ops/ones.h>

#include <iostream>

#ifndef USE_DISTRIBUTED
#error "the definitions with which torch was compiled are missing"
#endif

int main() {
  std::cout << "sum " << at::ones({2, 3}).sum().item<float>() << '\n';
}
