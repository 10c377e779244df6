#include "bimetal/monitor/page.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "bimetal/base/release.h"
#include "bimetal/monitor/page_file.h"
#include "bimetal/monitor/run_record.h"
#include "bimetal/net/noise.h"
#include "bimetal/net/token.h"

namespace bimetal::monitor {
namespace {

constexpr std::string_view kLinkPath = "/open/";
constexpr int kCookieSeconds = 30 * 24 * 3600;
constexpr std::size_t kNameDigits = 8;

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kStatusEvery{200};
constexpr std::size_t kMostRuns = 12;
constexpr const char* kJson = "application/json";

/// As browsers name a script or a style that they may use: 'sha256-…'.
std::string source_of(std::string_view text) {
  net::ensure_sodium();
  std::array<unsigned char, crypto_hash_sha256_BYTES> hash;
  crypto_hash_sha256(hash.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size());
  constexpr auto kVariant = sodium_base64_VARIANT_ORIGINAL;
  std::array<char, sodium_base64_ENCODED_LEN(hash.size(), kVariant)> code;
  sodium_bin2base64(code.data(), code.size(), hash.data(), hash.size(), kVariant);
  return fmt::format("'sha256-{}'", code.data());
}

/// Nothing from anywhere else, no script and no style but the page's own, and in nobody's frame.
std::string policy() {
  return fmt::format(
      "Content-Security-Policy: default-src 'none'; script-src {}; style-src {}; connect-src "
      "'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
      "Referrer-Policy: no-referrer\r\n",
      source_of(kPageScript), source_of(kPageStyle));
}

std::string event(std::string_view name, std::string_view json) {
  return fmt::format("event: {}\ndata: {}\n\n", name, json);
}

/// The request of a button. Nothing if the text is none.
std::optional<progress::Asked> parse_press(const Json& json) {
  if (!json.is_object() || !json.contains("ask") || !json["ask"].is_string()) return std::nullopt;
  const auto number = [&](const char* name, std::uint64_t least, std::uint64_t most) {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_number_unsigned()) return -1;
    const auto value = found->get<std::uint64_t>();
    return value >= least && value <= most ? static_cast<int>(value) : -1;
  };
  constexpr std::uint64_t kMostWorkers = 1U << 20;
  const auto& ask = json["ask"].get_ref<const std::string&>();
  if (ask == "save") return progress::Asked{.save = true};
  if (ask == "stop") return progress::Asked{.stop = true};
  if (ask == "sample") return progress::Asked{.sample = 1 + randombytes_random()};
  if (const int worker = number("worker", 0, kMostWorkers); ask == "leave" && worker >= 0) {
    return progress::Asked{.leave = worker};
  }
  if (const int steps = number("steps", 1, progress::Requests::kMostSteps);
      ask == "profile" && steps > 0) {
    return progress::Asked{.profile = steps};
  }
  return std::nullopt;
}

}  // namespace

Access::Access()
    : cookie_(net::Token::generate()),
      press_(net::Token::generate()),
      cookie_name_("bimetal_" + std::string(net::Token::generate().text().substr(0, kNameDigits))),
      is_cookie_(cookie_),
      is_press_(press_) {}

std::string Access::new_link() {
  const std::scoped_lock lock(mutex_);
  link_ = net::Token::generate();
  return fmt::format("{}{}", kLinkPath, link_->text());
}

bool Access::is_link(std::string_view path) {
  return path.starts_with(kLinkPath);
}

std::optional<std::string> Access::open(std::string_view path) {
  const std::scoped_lock lock(mutex_);
  if (!link_ || !is_link(path)) return std::nullopt;
  if (!net::BearerCheck(*link_).admits(path.substr(kLinkPath.size()))) return std::nullopt;
  link_.reset();
  return fmt::format("Set-Cookie: {}={}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict\r\n",
                     cookie_name_, cookie_.text(), kCookieSeconds);
}

bool Access::knows(const net::HttpRequest& request) const {
  const auto cookie = net::cookie_of(request, cookie_name_);
  return cookie && is_cookie_.admits(*cookie);
}

bool Access::may_press(const net::HttpRequest& request) const {
  if (!knows(request) || !is_press_.admits(request.press.value_or(""))) return false;
  return request.host && request.origin == fmt::format("http://{}", *request.host);
}

Page::Page(const Recorder& recorder, const History& history, Access& access, const Buttons& buttons,
           const std::filesystem::path& run_dir)
    : recorder_(recorder),
      history_(history),
      access_(access),
      buttons_(buttons),
      run_dir_(run_dir.empty() ? run_dir : std::filesystem::absolute(run_dir / "").parent_path()) {}

net::HttpAnswer Page::file() {
  static const auto head = policy();
  static const auto text = fmt::format("{}<style>{}</style>{}<script>{}</script>{}", kPageHead,
                                       kPageStyle, kPageBody, kPageScript, kPageEnd);
  return {.content_type = "text/html; charset=utf-8", .body = text, .more_head = head};
}

std::optional<net::HttpAnswer> Page::answer(const net::HttpRequest& request,
                                            std::string_view body) {
  const bool posts = request.method == "POST";
  if (posts && request.path == "/press") return press(request, body);
  if (posts || (request.method != "GET" && request.method != "HEAD")) return std::nullopt;
  if (request.path == "/") return file();
  if (request.path == "/events") return stream(request);
  if (request.path == "/runs") return runs(request);
  if (Access::is_link(request.path)) return enter(request);
  return std::nullopt;
}

net::HttpAnswer Page::enter(const net::HttpRequest& request) {
  // A client that only asks whether the page is there has not opened it.
  const auto cookie = request.method == "GET" ? access_.open(request.path) : std::nullopt;
  if (cookie) return {.status = 303, .more_head = *cookie + "Location: /\r\n"};
  return {401, "text/plain; charset=utf-8",
          "this link has been used, or is not the last one: a browser that is in makes another by "
          "its button \"open elsewhere\"\n"};
}

std::string Page::hello(bool may_press) const {
  Json json = {{"version", std::string(release())}};
  auto can = Json::array();
  if (buttons_.requests != nullptr) {
    if (buttons_.save) can.push_back("save");
    can.push_back("stop");
    if (buttons_.leave) can.push_back("leave");
    if (buttons_.profile) can.push_back("profile");
    if (buttons_.sample) can.push_back("sample");
  }
  json["can"] = can;
  json["runs"] = !run_dir_.empty();
  json["press"] = may_press ? Json(std::string(access_.press())) : Json();
  return json.dump();
}

const std::string& Page::status() {
  if (!status_.empty() && !status_until_.expired()) return status_;
  status_until_ = Deadline::after(kStatusEvery);
  status_ = monitor::to_json(recorder_.status());
  status_.pop_back();  // the line's end
  return status_;
}

net::HttpAnswer Page::stream(const net::HttpRequest& request) {
  const bool may_press = access_.knows(request);
  auto next = [this, may_press, known = std::optional<History::Known>()]() mutable {
    if (!known) {
      known.emplace();
      const auto all = history_.to_json(*known);
      return event("hello", hello(may_press)) + event("history", all) + event("status", status());
    }
    const auto news = history_.news(*known);
    return (news.empty() ? "" : event("news", news)) + event("status", status());
  };
  return {.content_type = "text/event-stream", .stream = std::move(next)};
}

/// Other people of this machine may watch this job, but not read the rest of its folder.
net::HttpAnswer Page::runs(const net::HttpRequest& request) const {
  if (!access_.knows(request)) {
    return {403, "text/plain; charset=utf-8",
            "runs are for a browser that has opened the job's link: docs/monitoring.md\n"};
  }
  const auto found =
      run_dir_.empty() ? std::vector<RunRecord>() : list_runs(run_dir_.parent_path(), kMostRuns);
  return {200, kJson,
          fmt::format("{{\"this\":{},\"runs\":{}}}", text_of(run_dir_.filename().string()),
                      to_json(found))};
}

net::HttpAnswer Page::press(const net::HttpRequest& request, std::string_view body) {
  if (!access_.may_press(request)) {
    return {403, "text/plain; charset=utf-8",
            "buttons are for a browser that has opened the job's link: docs/monitoring.md\n"};
  }
  const auto json = Json::parse(body, nullptr, false);
  if (json == Json{{"ask", "link"}}) {
    return {200, kJson, Json{{"link", access_.new_link()}}.dump()};
  }
  const auto asked = parse_press(json);
  if (!asked) return {400, "text/plain", "no button asks that\n"};
  const bool can = (!asked->save || buttons_.save) && (asked->leave < 0 || buttons_.leave) &&
                   (asked->profile == 0 || buttons_.profile) &&
                   (asked->sample == 0 || buttons_.sample);
  if (buttons_.requests == nullptr || !can) {
    return {403, "text/plain", "this job cannot be asked that\n"};
  }
  buttons_.requests->ask(*asked);
  return {200, kJson, "{}"};
}

}  // namespace bimetal::monitor
