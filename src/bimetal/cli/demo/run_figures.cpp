#include "bimetal/cli/demo/run_figures.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "bimetal/base/error.h"

namespace bimetal::cli {

RunFigures read_run_figures(const std::filesystem::path& report) {
  std::ifstream file(report);
  if (!file) throw system_error(fmt::format("cannot read report {}", report.string()), errno);
  try {
    const auto json = nlohmann::json::parse(file);
    const auto& accuracy = json.at("test_accuracy");
    RunFigures figures{
        json.at("samples_per_s").get<double>(),
        accuracy.is_null() ? std::numeric_limits<double>::quiet_NaN() : accuracy.get<double>()};
    if (json.contains("fastest_alone")) {
      figures.fastest_rank = json.at("fastest_alone").at("rank").get<int>();
      figures.fastest_time = json.at("fastest_alone").at("time").get<std::string>();
    }
    return figures;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("report {}: {}", report.string(), error.what()));
  }
}

}  // namespace bimetal::cli
