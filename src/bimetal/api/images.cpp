#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <exception>

#include "bimetal/api/job.h"
#include "bimetal/data/transfer/shared_data.h"
#include "bimetal/launch/fetch_url.h"

namespace bimetal::data {

ImageDataset idx_images(const std::string& name, const Job& job,
                        const std::filesystem::path& path) {
  job::DataConfig config;
  config.name = name;
  config.path = path.string();
  progress::Observer nobody;
  auto group = job.group();
  try {
    const auto files = data::share_dataset(
        group, config, {.host_name = asio::ip::host_name(), .fetch = launch::fetch_url}, nobody);
    return load_dataset(files).train;
  } catch (const std::exception& failure) {
    // What went wrong here alone must not leave the others waiting.
    group.abort(fmt::format("rank {}: {}", group.rank(), failure.what()));
    throw;
  }
}

}  // namespace bimetal::data
