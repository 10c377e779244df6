#pragma once
// What one worker runs on, as typed after --worker: "cpu", "cpu:threads=1,speed=0.25", "cuda:0",
// "mps". Part of the job's configuration, so it parses without libtorch being initialised.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bimetal::device {

struct WorkerSpec {
  std::string type = "auto";    ///< "auto", "cpu", "cuda", "mps", "xpu"…
  std::optional<int> index;     ///< cuda:1 → 1
  std::optional<int> threads;   ///< CPU threads; default: cores ÷ workers on this host
  double speed = 1.0;           ///< (0, 1]: emulates a slower device by pausing after compute
  std::optional<std::uint64_t> memory_bytes;  ///< memory=2GiB: the worker may use no more than this
};

/// Error(InvalidArgument) names the part that is wrong and the valid keys.
WorkerSpec parse_worker_spec(std::string_view text);

std::string to_string(const WorkerSpec& spec);

}  // namespace bimetal::device
