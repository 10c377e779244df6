// One rank of the comparison: MPI_Allreduce of float32, in place, each size in turn.
// Usage: mpi_all_reduce SECONDS BYTES... Prints what gloo_all_reduce.py prints.

#include <mpi.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

void all_reduce(std::vector<float>& data) {
  MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM,
                MPI_COMM_WORLD);
}

void agree(double* figures, int count, MPI_Op op) {
  MPI_Allreduce(MPI_IN_PLACE, figures, count, MPI_DOUBLE, op, MPI_COMM_WORLD);
}

void measure(std::size_t bytes, double seconds, int rank) {
  std::vector<float> data(bytes / sizeof(float));
  double longest = 0;
  for (int i = 0; i < 3; ++i) {
    const double begun = MPI_Wtime();
    all_reduce(data);
    longest = MPI_Wtime() - begun;
  }
  agree(&longest, 1, MPI_MAX);
  const int runs = static_cast<int>(std::clamp(seconds / longest, 5.0, 20000.0));
  std::vector<double> spans(runs);
  MPI_Barrier(MPI_COMM_WORLD);
  double cpu = cpu_seconds();
  const double begun = MPI_Wtime();
  double before = begun;
  for (double& span : spans) {
    all_reduce(data);
    const double now = MPI_Wtime();
    span = now - before;
    before = now;
  }
  double whole = before - begun;
  cpu = cpu_seconds() - cpu;
  agree(spans.data(), runs, MPI_MAX);
  agree(&whole, 1, MPI_MAX);
  agree(&cpu, 1, MPI_SUM);
  std::sort(spans.begin(), spans.end());
  if (rank != 0) return;
  std::printf("{\"bytes\": %zu, \"median_s\": %.9g, \"mean_s\": %.9g, \"cpu_s\": %.9g}\n", bytes,
              spans[runs / 2], whole / runs, cpu / runs);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 2; i < argc; ++i) measure(std::strtoull(argv[i], nullptr, 10), std::atof(argv[1]), rank);
  MPI_Finalize();
}
