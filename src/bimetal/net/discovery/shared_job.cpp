#include "bimetal/net/discovery/shared_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/ip/address.hpp>
#include <charconv>

#include "bimetal/net/advertise.h"

namespace bimetal::net::discovery {
namespace {

constexpr std::size_t kMaxLabelLength = 63;

bool is_printable(std::string_view text) {
  return !text.empty() && text.size() <= kMaxLabelLength &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 0x7f; });
}

/// Those of a list with commas that are addresses.
std::vector<std::string> addresses_in(std::string_view list) {
  std::vector<std::string> addresses;
  while (!list.empty() && addresses.size() < kMaxAdvertised) {
    const auto end = std::min(list.find(','), list.size());
    std::error_code error;
    const auto address = asio::ip::make_address(std::string(list.substr(0, end)), error);
    if (!error && !address.is_unspecified()) addresses.push_back(address.to_string());
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return addresses;
}

}  // namespace

std::string printable(std::string text) {
  text.resize(std::min(text.size(), kMaxLabelLength));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c >= 0x7f; }, '-');
  return text;
}

std::string txt_record(const SharedJob& job) {
  std::string addresses;
  for (const auto& address : job.addresses) {
    const auto more = (addresses.empty() ? "" : ",") + address;
    if (addresses.size() + more.size() < 250) addresses += more;
  }
  std::string record;
  for (const auto& entry : {"job=" + printable(job.name), "for=" + printable(job.purpose),
                            "machine=" + printable(job.machine),
                            fmt::format("workers={}", job.workers), "at=" + addresses}) {
    record += static_cast<char>(entry.size());
    record += entry;
  }
  return record;
}

SharedJob parse_txt_record(std::string_view record) {
  SharedJob job;
  while (!record.empty()) {
    const std::size_t length = static_cast<unsigned char>(record.front());
    record.remove_prefix(1);
    const auto entry = record.substr(0, length);
    record.remove_prefix(entry.size());
    const auto sign = entry.find('=');
    if (sign == std::string_view::npos) continue;
    const auto key = entry.substr(0, sign), value = entry.substr(sign + 1);
    if (key == "job" && is_printable(value)) job.name = value;
    if (key == "for" && is_printable(value)) job.purpose = value;
    if (key == "machine" && is_printable(value)) job.machine = value;
    if (key == "at") job.addresses = addresses_in(value);
    if (key == "workers" && value.size() < 6) {
      std::from_chars(value.data(), value.data() + value.size(), job.workers);
      job.workers = std::max(job.workers, 0);
    }
  }
  return job;
}

}  // namespace bimetal::net::discovery
