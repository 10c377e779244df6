// Reads a 0 or a 1 for each step, whether its gradients overflow, and writes the scale after it.
// Usage: loss_scaler_decisions INITIAL GROWTH BACK_OFF INTERVAL

#include <cstdio>
#include <cstdlib>

#include "bimetal/precision/loss_scaler.h"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  bimetal::precision::LossScaler scaler({.initial = std::atof(argv[1]),
                                         .growth = std::atof(argv[2]),
                                         .back_off = std::atof(argv[3]),
                                         .interval = std::atoll(argv[4])});
  for (int overflow = 0; std::scanf("%d", &overflow) == 1;) {
    scaler.update(overflow != 0);
    std::printf("%.17g\n", scaler.scale());
  }
}
