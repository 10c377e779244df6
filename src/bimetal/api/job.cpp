#include "bimetal/api/job.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/api/session.h"
#include "bimetal/base/error.h"
#include "bimetal/data/images/dataset.h"
#include "bimetal/data/transfer/shared_data.h"
#include "bimetal/device/device.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/launch/meet.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/launch/rank_places.h"

namespace bimetal {
namespace {

std::optional<std::string> argument_for_worker(int argc, const char* const* argv) {
  constexpr std::string_view kOption = "--worker";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kOption)) continue;
    const auto rest = argument.substr(kOption.size());
    if (rest.starts_with('=')) return std::string(rest.substr(1));
    if (!rest.empty()) continue;
    if (i + 1 < argc) return argv[i + 1];
    throw Error(ErrorCode::InvalidArgument, "--worker needs a device, as in --worker cpu");
  }
  return std::nullopt;
}

/// One for all ranks of this machine, or one for each.
std::string variable_for_worker(int local_rank, int local_ranks) {
  const char* variable = std::getenv("BIMETAL_WORKER");
  if (variable == nullptr) return "auto";
  std::vector<std::string> specs = {""};
  for (const char* next = variable; *next != '\0'; ++next) {
    if (*next == ';') {
      specs.emplace_back();
    } else if (*next != ' ') {
      specs.back() += *next;
    }
  }
  if (specs.size() == 1) return specs.front();
  if (std::ssize(specs) == local_ranks) return specs[static_cast<std::size_t>(local_rank)];
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("BIMETAL_WORKER is '{}', {} devices, and this machine has {} ranks: give "
                          "one for each, or one for all",
                          variable, specs.size(), local_ranks));
}

}  // namespace

Job init(int argc, const char* const* argv, const InitOptions& options) {
  auto asked = argument_for_worker(argc, argv);
  if (!asked && !options.worker.empty()) asked = options.worker;
  if (asked) job::parse_worker_spec(*asked);  // before anybody waits for this rank
  const char* doors = std::getenv(launch::kDoorVariable);
  const bool comes_later = doors != nullptr && *doors != '\0';
  const auto environment = comes_later ? launch::rank_from_environment()
                                       : launch::find_rank(comm::Transport::automatic,
                                                           Deadline::after(options.join_timeout));
  const int local_rank = environment ? environment->local_rank : 0;
  const int local_ranks = environment ? environment->local_world_size : 1;
  api::Start start{.worker_text = asked ? *asked : variable_for_worker(local_rank, local_ranks),
                   .rank = environment};
  start.worker = job::parse_worker_spec(start.worker_text);
  start.token = options.token_file.empty() ? net::Token::from_environment()
                                           : net::Token::from_file(options.token_file);
  if (comes_later) start.doors = doors;
  if (!environment || comes_later) {
    return Job(std::make_shared<api::Session>(launch::single_process_world(), std::move(start)));
  }
  launch::JoinOptions join;
  join.token = start.token;
  join.join_timeout = options.join_timeout;
  auto group = launch::join_world(*environment, join);
  return Job(std::make_shared<api::Session>(std::move(group), std::move(start)));
}

int Job::rank() const {
  return session_->group().rank();
}

int Job::world_size() const {
  return session_->group().size();
}

torch::Device Job::device() const {
  return session_->device();
}

comm::Group Job::group() const {
  return session_->group();
}

BalancedBatches Job::balanced(std::shared_ptr<const task::Dataset> dataset,
                              BalancedOptions options) const {
  return BalancedBatches(session_->begin(std::move(dataset), options));
}

BalancedBatches Job::balanced(const data::ImageDataset& images, BalancedOptions options) const {
  return balanced(std::make_shared<data::ImageSet>(images, options.dtype), options);
}

const progress::Progress& Job::progress() const {
  return session_->steps().progress();
}

void Job::watch(std::shared_ptr<progress::Observer> observer) const {
  if (!observer) throw Error(ErrorCode::InvalidArgument, "Job::watch needs an observer");
  session_->watch(std::move(observer));
}

progress::Report Job::report() const {
  return session_->steps().report();
}

std::vector<std::string> Job::doors() const {
  return session_->doors();
}

void Job::run(const std::function<void()>& work) const {
  api::or_end_all(session_->group(), work);
}

void Job::leave() const noexcept {
  session_->leave();
}

}  // namespace bimetal

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
    // A failure on this rank alone must not leave the others waiting.
    group.abort(fmt::format("rank {}: {}", group.rank(), failure.what()));
    throw;
  }
}

}  // namespace bimetal::data
