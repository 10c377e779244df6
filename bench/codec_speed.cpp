// Speed of the codecs of docs/compression.md on one core, in GB/s of float32, beside memcpy of the
// same bytes: `codec_speed [MEBIBYTES]`. The figures go in turns, best of several.

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "bimetal/comm/compress/dense_reduction.h"
#include "bimetal/comm/compress/low_rank.h"
#include "bimetal/comm/compress/top_k.h"

namespace {

using namespace bimetal::comm;

struct Task {
  std::string name;
  std::function<void()> run;
  double best_s = 1e9;
};

void time(Task& task) {
  const auto begun = std::chrono::steady_clock::now();
  task.run();
  const std::chrono::duration<double> span = std::chrono::steady_clock::now() - begun;
  task.best_s = std::min(task.best_s, span.count());
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t mebibytes = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 16;
  const std::size_t side =
      512 * static_cast<std::size_t>(std::sqrt(static_cast<double>(mebibytes)));
  const std::size_t count = side * side;
  std::vector<float> values(count), result(count);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  std::vector<std::byte> bytes(count * sizeof(float));

  std::vector<Task> tasks;
  tasks.push_back({"memcpy", [&] { std::memcpy(result.data(), values.data(), bytes.size()); }});
  for (const Scheme scheme :
       {Scheme::float16, Scheme::bfloat16, Scheme::int8, Scheme::int4, Scheme::sign}) {
    const std::size_t size = encoded_bytes(scheme, count);
    const auto name = std::string(to_string(scheme));
    tasks.push_back({name + " encode", [&, scheme] { encode(scheme, values, bytes); }});
    tasks.push_back({name + " decode",
                     [&, scheme, size] { decode(scheme, std::span(bytes).first(size), result); }});
  }
  tasks.push_back({"topk 0.1 % select", [&] { largest_elements(values, count / 1000); }});
  const Matrix shape{side, side};
  std::vector<float> p(side * 4), q(side * 4, 0.5f);
  tasks.push_back({"powersgd 4: P = M Q", [&] { multiply(values, shape, 4, q, p); }});
  tasks.push_back({"powersgd 4: Q = Mt P", [&] { multiply_transposed(values, shape, 4, p, q); }});
  tasks.push_back({"powersgd 4: P Qt", [&] { reconstruct(shape, 4, p, q, {}, result, {}); }});

  for (int turn = 0; turn < 7; ++turn) {
    for (Task& task : tasks) time(task);
  }
  fmt::print("{:>24} {:>8} {:>10}\n", fmt::format("{} MiB of float32", bytes.size() >> 20), "GB/s",
             "of memcpy");
  for (const Task& task : tasks) {
    fmt::print("{:>24} {:>8.2f} {:>10.2f}\n", task.name,
               static_cast<double>(bytes.size()) / task.best_s * 1e-9,
               tasks.front().best_s / task.best_s);
  }
}
