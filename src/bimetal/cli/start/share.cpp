#include "bimetal/cli/start/share.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <asio/ip/host_name.hpp>
#include <charconv>
#include <cstdio>
#include <iostream>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/release.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/net/advertise.h"
#include "bimetal/net/pairing/code.h"

namespace bimetal::cli {
namespace {

namespace pairing = net::pairing;

constexpr const char* kCodeVariable = "BIMETAL_CODE";
constexpr std::chrono::seconds kToFindJobs{4};

/// The address of the default route, or where there is none of any interface that reaches others.
std::string address_to_prefer() {
  try {
    return net::reachable_address("0.0.0.0");
  } catch (const Error&) {
    // No default route: two machines joined by a cable have none.
  }
  for (const auto& [name, address] : net::own_addresses()) {
    const bool one_link = address.is_v6() && address.to_v6().is_link_local();
    if (!address.is_loopback() && !one_link) return address.to_string();
  }
  throw Error(ErrorCode::InvalidArgument,
              "this machine has no network, so no other one could join: connect it to the other "
              "machine's, or leave --share out");
}

pairing::HostOptions pairing_options(const net::Token& token, std::uint16_t store) {
  const bool encrypted = net::encryption_from_environment() == net::Encryption::on;
  return {.listen = {},
          .grant = {token, store, encrypted},
          .machines = net::Machines::of_user(),
          .release = std::string(release()),
          .show_code =
              [](const std::string& code, const std::string& asked_from) {
                print_to_errors(
                    fmt::format("{} asks to join this job. If that is yours, type "
                                "there, within two minutes: {}",
                                asked_from, code));
              },
          .say = [](const std::string& note) { print_to_errors(note); }};
}

/// One line of standard input; nothing at its end.
std::optional<std::string> read_line(const std::string& prompt) {
  if (is_terminal(0)) write_to(stderr, prompt);
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

/// A user at a terminal may correct a wrong code. A script may not.
std::optional<std::string> type_code(const std::string& host, const std::string& complaint) {
  const bool somebody_there = is_terminal(0);
  if (!complaint.empty()) {
    if (!somebody_there) return std::nullopt;
    print_to_errors(complaint);
  }
  for (;;) {
    const auto line = read_line(fmt::format("the code that {} shows: ", host));
    if (!line) return std::nullopt;
    try {
      return net::parse_code(*line);
    } catch (const Error& error) {
      if (!somebody_there) throw;
      print_to_errors(error.what());
    }
  }
}

}  // namespace

std::string own_host_name() {
  return asio::ip::host_name();
}

void encrypt_unless_told(bool encrypted) {
  ::setenv("BIMETAL_ENCRYPTION", encrypted ? "on" : "off", 0);
}

std::vector<std::string> addresses_to_share() {
  return net::addresses_to_advertise(net::interfaces_from_environment(), address_to_prefer(),
                                     net::own_addresses());
}

net::Endpoint share_endpoint(const HostOptions& options, std::uint16_t port) {
  if (!options.listen.empty()) return net::parse_endpoint(options.listen);
  const bool v6 = addresses_to_share().front().find(':') != std::string::npos;
  return {v6 ? "::" : "0.0.0.0", port};
}

Share::Share(const HostOptions& options, const net::Token& token, std::uint16_t store,
             std::uint16_t port)
    : usual_port_(port) {
  auto wanted = pairing_options(token, store);
  wanted.listen = share_endpoint(options, port);
  const bool any = options.listen.empty();
  try {
    host_.emplace(wanted);
  } catch (const Error& error) {
    if (!any || error.code() != ErrorCode::System) throw;
    wanted.listen.port = 0;  // another job is shared here, too
    host_.emplace(wanted);
  }
  address_ = any ? addresses_to_share().front() : net::reachable_address(wanted.listen.host);
}

void Share::announce(const std::string& job, int workers, const std::string& purpose) {
  if (net::is_loopback(address_)) return;
  try {
    announcement_.emplace(net::discovery::SharedJob{.name = job,
                                                    .purpose = purpose,
                                                    .machine = net::Machines::of_user().own_name(),
                                                    .workers = workers,
                                                    .addresses = addresses_to_share(),
                                                    .port = host_->endpoint().port});
  } catch (const Error& error) {
    print_to_errors(fmt::format(
        "others do not see this job by themselves ({}): name this machine there", error.what()));
  }
}

net::discovery::SharedJob choose_job(Terminal& terminal, const std::string& purpose) {
  const bool ray = purpose == "ray";
  const auto* const kInstead = ray ? "type: bimetal ray join HOST, the cluster's first machine"
                                   : "type: bimetal join HOST, the job's machine";
  std::vector<net::discovery::SharedJob> jobs;
  try {
    jobs = net::discovery::find_jobs(kToFindJobs);
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("cannot look for jobs: {}. Or {}", error.what(), kInstead));
  }
  std::erase_if(jobs, [&](const auto& job) { return job.purpose != purpose; });
  if (jobs.empty()) {
    throw Error(ErrorCode::Timeout,
                fmt::format("no shared {} is seen: is one there (bimetal {} --share), in this "
                            "network, and does no firewall block mDNS (UDP 5353)? Or {}",
                            ray ? "cluster" : "job", ray ? "ray up" : "train", kInstead));
  }
  std::vector<TableRow> rows;
  for (const auto& job : jobs) {
    rows.push_back({fmt::format("{}", rows.size() + 1), job.name, "on " + job.machine,
                    counted(job.workers, "worker"), job.addresses.front()});
  }
  for (const auto& line : aligned(rows, rows.front().size())) terminal.print(line);
  if (jobs.size() == 1) return jobs.front();
  const auto line = read_line(fmt::format("which one, 1 to {}: ", jobs.size()));
  std::size_t number = 0;
  if (line) std::from_chars(line->data(), line->data() + line->size(), number);
  if (number >= 1 && number <= jobs.size()) return jobs[number - 1];
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("there are {} shared jobs: say which by its number, or {}", jobs.size(),
                          kInstead));
}

std::string Share::place() const {
  const net::Endpoint endpoint{address_, host_->endpoint().port};
  const bool usual = endpoint.port == usual_port_ && address_.find(':') == std::string::npos;
  return usual ? address_ : net::to_string(endpoint);
}

std::string Share::how_to_join() const {
  return fmt::format("bimetal join {}", place());
}

std::string Share::invitation() const {
  return fmt::format(
      "this job is shared. On the other machine run: {}\n"
      "and type there, within two minutes: {}",
      how_to_join(), host_->first_code());
}

net::Endpoint parse_host(const std::string& text, std::uint16_t port) {
  const bool v6 = text.starts_with('[');
  const auto colons = std::count(text.begin(), text.end(), ':');
  const bool has_port = v6 ? text.find("]:") != std::string::npos : colons == 1;
  if (has_port || text.empty()) return net::parse_endpoint(text);
  const bool bare_v6 = !v6 && colons > 1;
  return net::parse_endpoint(fmt::format("{}:{}", bare_v6 ? "[" + text + "]" : text, port));
}

std::optional<pairing::Admission> ask_to_be_let_in(std::vector<net::Endpoint> addresses,
                                                   const std::string& place, Deadline deadline) {
  pairing::GuestOptions options{.addresses = std::move(addresses),
                                .place = place,
                                .machines = net::Machines::of_user(),
                                .release = std::string(release()),
                                .deadline = deadline};
  if (const char* const given = std::getenv(kCodeVariable); given != nullptr && *given != '\0') {
    options.code = given;
  } else {
    options.ask_code = type_code;
  }
  options.say = [](const std::string& note) { print_to_errors(note); };
  return pairing::join(options);
}

}  // namespace bimetal::cli
