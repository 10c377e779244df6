#include "bimetal/job/job_config.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/job/job_keys.h"

namespace bimetal::job {
namespace {

/// The place of a value: "job.toml:12", or "--set train.epochs=3".
using Where = std::string;

[[noreturn]] void refuse(const Where& place, const std::string& problem) {
  throw Error(ErrorCode::InvalidArgument, fmt::format("{}: {}", place, problem));
}

Where place_of(const std::string& origin, const toml::source_region& source) {
  return fmt::format("{}:{}", origin, source.begin.line);
}

std::vector<std::string_view> section_names(const std::vector<JobKey>& keys) {
  std::vector<std::string_view> names;
  for (const JobKey& key : keys) {
    if (names.empty() || names.back() != key.section) names.push_back(key.section);
  }
  return names;
}

void require_section(const Where& place, const std::vector<JobKey>& keys,
                     std::string_view section) {
  const auto known = section_names(keys);
  if (std::find(known.begin(), known.end(), section) != known.end()) return;
  refuse(place, fmt::format("unknown section [{}]; did you mean [{}]?", section,
                            nearest_name(section, known)));
}

/// The section that a key of this name belongs to; empty if there is none.
std::string_view home_of(const std::vector<JobKey>& keys, std::string_view name) {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const JobKey& key) { return key.name == name; });
  return found == keys.end() ? std::string_view() : found->section;
}

const JobKey* key_named(const std::vector<JobKey>& keys, std::string_view section,
                        std::string_view name) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const JobKey& key) {
    return key.section == section && key.name == name;
  });
  return found == keys.end() ? nullptr : &*found;
}

const JobKey& find_key(const Where& place, const std::vector<JobKey>& keys,
                       std::string_view section, std::string_view name) {
  if (const auto* key = key_named(keys, section, name)) return *key;
  std::vector<std::string_view> known;
  for (const JobKey& key : keys) {
    if (key.section == section) known.push_back(key.name);
  }
  const auto home = home_of(keys, name);
  const auto hint = home.empty() ? fmt::format("did you mean '{}'?", nearest_name(name, known))
                                 : fmt::format("it belongs in [{}]", home);
  refuse(place, fmt::format("unknown key '{}' in [{}]; {}", name, section, hint));
}

void assign(const Where& place, const JobKey& key, const toml::node& value) {
  if (const auto problem = key.value.read(value)) {
    refuse(place, fmt::format("'{}' in [{}]: {}", key.name, key.section, *problem));
  }
}

/// The entries of a table in the order of their lines, so that the first mistake is reported first.
std::vector<std::pair<const toml::key*, const toml::node*>> in_order(const toml::table& table) {
  std::vector<std::pair<const toml::key*, const toml::node*>> entries;
  for (auto&& [key, node] : table) entries.emplace_back(&key, &node);
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.first->source().begin.line < b.first->source().begin.line;
  });
  return entries;
}

toml::table parse_toml(std::string_view text, const std::string& origin) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    refuse(place_of(origin, error.source()), std::string(error.description()));
  }
}

/// Whether `word` may stand in the place of that section; if so, the section's keys get its values.
bool assign_word(const Where& place, const std::vector<JobKey>& keys, std::string_view section,
                 std::string_view word) {
  for (const SectionWord& known : section_words()) {
    if (known.section != section) continue;
    if (known.word != word) {
      refuse(place, fmt::format("[{}] is a section, or the word {}, not {}", section,
                                toml_string(known.word), toml_string(word)));
    }
    for (const auto& [name, value] : known.values) {
      assign(place, *key_named(keys, section, name), toml::value<std::string>(std::string(value)));
    }
    return true;
  }
  return false;
}

void apply_file(const toml::table& file, const std::string& origin,
                const std::vector<JobKey>& keys) {
  for (const auto& [section, node] : in_order(file)) {
    const Where place = place_of(origin, section->source());
    const toml::table* table = node->as_table();
    const auto* word = node->as_string();
    if (word && assign_word(place, keys, section->str(), word->get())) continue;
    if (!table) {
      const auto home = home_of(keys, section->str());
      if (!home.empty()) {
        refuse(place, fmt::format("'{}' stands outside its section [{}]", section->str(), home));
      }
      refuse(place, fmt::format("expected a section, found {} named '{}'", type_name(*node),
                                section->str()));
    }
    require_section(place, keys, section->str());
    for (const auto& [name, value] : in_order(*table)) {
      const Where line = place_of(origin, name->source());
      assign(line, find_key(line, keys, section->str(), name->str()), *value);
    }
  }
}

/// The text after the '=' of an override, as `value` of a table of its own. It is taken as TOML if
/// it parses. Otherwise, and for text keys without quotes, it is taken as it stands.
toml::table override_value(const Where& place, const JobKey& key, std::string_view words) {
  try {
    auto table = toml::parse(fmt::format("value = {}", words));
    const bool literal = key.value.is_text && !table["value"].is_string();
    if (table.size() == 1 && !literal) return table;
  } catch (const toml::parse_error& error) {
    // As text, [::1]:9100 is an address.
    const bool meant_as_toml =
        words.starts_with('"') || (words.starts_with('[') && !key.value.is_text);
    if (meant_as_toml) refuse(place, std::string(error.description()));
  }
  return parse_toml("value = " + toml_string(words), place);
}

/// An override as messages show it: a URL may hold a password, wherever the mistake is.
Where place_of_override(const std::string& text) {
  auto value = text.substr(std::min(text.find('=') + 1, text.size()));
  std::erase(value, '"');
  return "--set " + (is_url(value) ? without_secrets_of(value, text) : text);
}

void apply_override(const std::string& text, const std::vector<JobKey>& keys) {
  const Where place = place_of_override(text);
  const auto equals = text.find('=');
  const auto dot = text.find('.');
  const std::string_view view = text;
  if (equals != std::string::npos && dot >= equals) {
    auto word = text.substr(equals + 1);
    std::erase(word, '"');
    if (assign_word(place, keys, view.substr(0, equals), word)) return;
  }
  if (equals == std::string::npos || dot >= equals) refuse(place, "expected section.key=value");
  const auto section = view.substr(0, dot);
  require_section(place, keys, section);
  const auto name = view.substr(dot + 1, equals - dot - 1);
  const JobKey& key = find_key(place, keys, section, name);
  const auto table = override_value(place, key, view.substr(equals + 1));
  assign(place, key, *table.get("value"));
}

std::string job_text(const std::filesystem::path& file) {
  const auto fail_to_read = [&](int cause) {
    refuse(file.string(), "cannot read the job file: " + std::generic_category().message(cause));
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) fail_to_read(EISDIR);
  std::ifstream stream(file, std::ios::binary);
  if (!stream.is_open()) fail_to_read(errno);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (stream.bad()) fail_to_read(EIO);
  return text;
}

/// `job`: the values for keys that the file does not set.
JobConfig parse_into(JobConfig job, std::string_view toml, const std::string& origin,
                     const std::vector<std::string>& overrides) {
  const auto file = parse_toml(toml, origin);
  apply_file(file, origin, job_keys(job));
  apply_overrides(job, overrides);
  const bool scheduled =
      file["mesh"]["schedule"] || std::ranges::any_of(overrides, [](const std::string& text) {
        return text.starts_with("mesh.schedule=");
      });
  if (is_open(job.mesh) && !scheduled) job.mesh.schedule = kAutoSchedule;
  return job;
}

}  // namespace

JobConfig load_job(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  JobConfig job;
  job.checkpoint.dir = (std::filesystem::path("runs") / file.stem()).string();
  return parse_into(std::move(job), job_text(file), file.string(), overrides);
}

JobConfig parse_job(std::string_view toml, const std::string& origin,
                    const std::vector<std::string>& overrides) {
  return parse_into({}, toml, origin, overrides);
}

void apply_overrides(JobConfig& job, const std::vector<std::string>& overrides) {
  const auto keys = job_keys(job);
  for (const std::string& text : overrides) apply_override(text, keys);
}

std::int64_t sample_group(const JobConfig& job) {
  return job.model.norm == "batch" ? job.model.norm_group : 0;
}

std::string to_toml(const JobConfig& job) {
  JobConfig copy = job;  // the table binds to members that could be written
  std::string out;
  std::string_view section;
  for (const JobKey& key : job_keys(copy)) {
    if (key.section != section)
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", key.section);
    section = key.section;
    out += fmt::format("{} = {}\n", key.name, key.value.write());
  }
  return out;
}

std::set<std::string> keys_in(const JobConfig& job) {
  JobConfig copy = job;
  std::set<std::string> keys;
  for (const JobKey& key : job_keys(copy)) {
    keys.insert(fmt::format("{}.{}={}", key.section, key.name, key.value.write()));
  }
  return keys;
}

std::string to_json(const JobConfig& job) {
  std::ostringstream out;
  out << toml::json_formatter(toml::parse(to_toml(job)));
  return std::move(out).str();
}

std::vector<std::string> job_key_names() {
  JobConfig job;
  std::vector<std::string> names;
  for (const JobKey& key : job_keys(job))
    names.push_back(fmt::format("{}.{}", key.section, key.name));
  return names;
}

}  // namespace bimetal::job
