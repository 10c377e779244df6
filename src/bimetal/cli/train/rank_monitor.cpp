#include "bimetal/cli/train/rank_monitor.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>

#include "bimetal/net/own_address.h"

namespace bimetal::cli {

monitor::MonitorOptions monitor_options(const job::MonitorConfig& config) {
  monitor::MonitorOptions options{.job_token = net::Token::from_environment(),
                                  .tensorboard_dir = config.tensorboard_dir,
                                  .host_name = asio::ip::host_name()};
  if (!config.listen.empty()) options.listen = net::parse_endpoint(config.listen);
  return options;
}

void announce(const monitor::Monitor& monitor, Terminal& terminal) {
  const auto bound = monitor.endpoint();
  if (!bound) return;
  const auto address = net::to_string({net::reachable_address(bound->host), bound->port});
  terminal.print(fmt::format("monitor at {0}; watch it with: bimetal top {0}", address));
}

}  // namespace bimetal::cli
