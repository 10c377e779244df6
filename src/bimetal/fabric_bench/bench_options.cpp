#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>

#include "bimetal/base/error.h"
#include "bimetal/fabric_bench/measure.h"

namespace bimetal::fabric_bench {
namespace {

using comm::DType;
using comm::Operation;

const std::map<std::string, Operation> kOperations = {
    {"allreduce", Operation::all_reduce},
    {"broadcast", Operation::broadcast},
    {"reduce", Operation::reduce},
    {"allgather", Operation::all_gather},
    {"reducescatter", Operation::reduce_scatter},
    {"alltoall", Operation::all_to_all},
    {"sendrecv", Operation::send_recv},
    {"barrier", Operation::barrier},
};

const std::map<std::string, DType> kTypes = [] {
  std::map<std::string, DType> types;
  for (const auto dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16,
                           DType::int8, DType::int16, DType::int32, DType::int64, DType::uint8}) {
    types.emplace(to_string(dtype), dtype);
  }
  return types;
}();

template <typename Value>
std::string name_of(const std::map<std::string, Value>& names, Value value) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  throw Error(ErrorCode::Internal, "an option's value has no name");
}

template <typename Value>
std::vector<std::string> names_in(const std::map<std::string, Value>& names) {
  std::vector<std::string> result;
  for (const auto& [name, value] : names) result.push_back(name);
  return result;
}

std::vector<std::string> scheme_names() {
  std::vector<std::string> names;
  for (auto scheme = comm::Scheme::none; scheme <= comm::Scheme::sign;
       scheme = static_cast<comm::Scheme>(static_cast<int>(scheme) + 1)) {
    names.emplace_back(to_string(scheme));
  }
  return names;
}

}  // namespace

void add_options(CLI::App& command, BenchOptions& options) {
  // As strings: CLI11 would print the enumerations by a to_string of its own.
  const auto set_operation = [&options](const std::string& name) {
    options.operation = kOperations.at(name);
  };
  command
      .add_option_function<std::string>(
          "operation", set_operation,
          "allreduce, broadcast, reduce, allgather, reducescatter, alltoall, sendrecv or barrier")
      ->required()
      ->type_name("OPERATION")
      ->transform(CLI::IsMember(names_in(kOperations), CLI::ignore_underscore).description(""));
  command.add_option("--min", options.min_bytes, "Smallest size, as 256, 64kb or 1mb")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(false));
  command.add_option("--max", options.max_bytes, "Largest size")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(false));
  command.add_option("--factor", options.factor, "From one size to the next")
      ->capture_default_str();
  const auto set_type = [&options](const std::string& name) { options.dtype = kTypes.at(name); };
  command
      .add_option_function<std::string>("--dtype", set_type,
                                        "Type of the elements (default float32)")
      ->type_name("TYPE")
      ->check(CLI::IsMember(names_in(kTypes)).description(""));
  command
      .add_option(
          "--ranks", options.ranks,
          "Processes to start on this machine; under a launcher (RANK is set, or mpirun) its own "
          "count")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--iterations", options.iterations,
                     "Timed runs of each size (default: as many as fit --seconds)");
  command.add_option("--seconds", options.seconds_per_size, "Time for each size")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--timeout", options.timeout_s, "Seconds that one operation may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--transport", options.transport, "What carries the bytes")
      ->check(CLI::IsMember({"auto", "tcp", "shm", "mpi"}))
      ->capture_default_str();
  command.add_option("--algorithm", options.algorithm, "docs/algorithms.md lists them")
      ->check(CLI::IsMember({"auto", "recursive_doubling", "halving_doubling", "ring", "tree",
                             "two_level", "weighted"}))
      ->capture_default_str();
  const auto set_scheme = [&options](const std::string& name) {
    options.compression.scheme = comm::scheme_of(name);
  };
  command
      .add_option_function<std::string>("--compress", set_scheme,
                                        "Compression of allreduce on the wire (default none)")
      ->type_name("SCHEME")
      ->check(CLI::IsMember(scheme_names()).description(""));
  const auto set_links = [&options](const std::string& name) {
    options.compression.links = comm::compressed_links_of(name);
  };
  command
      .add_option_function<std::string>("--compress-links", set_links,
                                        "What --compress shortens: all messages (default), or "
                                        "those between ranks that share no memory")
      ->type_name("LINKS")
      ->check(CLI::IsMember({"all", "between_islands"}).description(""));
  command.add_option("--density", options.compression.density, "Of topk: share of elements sent")
      ->capture_default_str();
  command.add_option("--rank", options.compression.rank, "Of powersgd: columns of the factors")
      ->capture_default_str();
  command
      .add_option("--shards", options.shards,
                  "Of allgather and reducescatter: a weight for each rank's part, as 3,1")
      ->type_name("W,W,…")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  command.add_flag("!--no-verify", options.verify, "Skip the check of the results before timing");
  command.add_flag("--json", options.json, "Print JSON instead of a table");
}

std::vector<std::string> to_arguments(const BenchOptions& options) {
  std::vector<std::string> words = {name_of(kOperations, options.operation),
                                    "--min",
                                    fmt::format("{}", options.min_bytes),
                                    "--max",
                                    fmt::format("{}", options.max_bytes),
                                    "--factor",
                                    fmt::format("{}", options.factor),
                                    "--dtype",
                                    name_of(kTypes, options.dtype),
                                    "--ranks",
                                    fmt::format("{}", options.ranks),
                                    "--iterations",
                                    fmt::format("{}", options.iterations),
                                    "--seconds",
                                    fmt::format("{}", options.seconds_per_size),
                                    "--timeout",
                                    fmt::format("{}", options.timeout_s),
                                    "--transport",
                                    options.transport,
                                    "--algorithm",
                                    options.algorithm,
                                    "--compress",
                                    std::string(to_string(options.compression.scheme)),
                                    "--compress-links",
                                    std::string(to_string(options.compression.links)),
                                    "--density",
                                    fmt::format("{}", options.compression.density),
                                    "--rank",
                                    fmt::format("{}", options.compression.rank)};
  if (!options.shards.empty()) {
    words.insert(words.end(), {"--shards", fmt::format("{}", fmt::join(options.shards, ","))});
  }
  if (!options.verify) words.push_back("--no-verify");
  if (options.json) words.push_back("--json");
  return words;
}

std::vector<std::size_t> sizes(const BenchOptions& options) {
  if (options.compression.scheme != comm::Scheme::none) {
    if (options.operation != Operation::all_reduce) {
      throw Error(ErrorCode::InvalidArgument, "--compress is for allreduce alone");
    }
    comm::tag_of(options.compression, 0, options.dtype,
                 comm::ReduceOp::avg);  // refuses invalid combinations
  }
  if (!options.shards.empty() && options.operation != Operation::all_gather &&
      options.operation != Operation::reduce_scatter) {
    throw Error(ErrorCode::InvalidArgument, "--shards is for allgather and reducescatter alone");
  }
  if (options.operation == Operation::barrier) return {0};
  if (options.factor <= 1 || options.min_bytes == 0 || options.min_bytes > options.max_bytes) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("sizes from {} to {} bytes by a factor of {} make no list: --min must "
                            "be from 1 to --max, --factor above 1",
                            options.min_bytes, options.max_bytes, options.factor));
  }
  std::vector<std::size_t> result;
  for (auto size = static_cast<double>(options.min_bytes);
       size <= static_cast<double>(options.max_bytes); size *= options.factor) {
    result.push_back(static_cast<std::size_t>(std::llround(size)));
  }
  return result;
}

}  // namespace bimetal::fabric_bench
