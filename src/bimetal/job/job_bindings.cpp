#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::job {
namespace {

using Problem = std::optional<std::string>;

std::string unexpected_type(std::string_view expected, const toml::node& node) {
  return fmt::format("expected {}, found {}", expected, type_name(node));
}

template <typename Integer>
Binding whole_number(Integer& to, std::int64_t min, std::int64_t max) {
  const auto read = [&to, min, max](const toml::node& node) -> Problem {
    const auto* number = node.as_integer();
    if (!number) return unexpected_type("a whole number", node);
    if (number->get() < min) {
      return fmt::format("expected a whole number of at least {}, found {}", min, number->get());
    }
    if (number->get() > max) {
      return fmt::format("expected a whole number of at most {}, found {}", max, number->get());
    }
    to = static_cast<Integer>(number->get());
    return std::nullopt;
  };
  return {read, [&to] { return fmt::format("{}", to); }};
}

/// Whole numbers are numbers, too: learning_rate = 1 is fine.
std::optional<double> as_number(const toml::node& node) {
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* number = node.as_integer()) return static_cast<double>(number->get());
  return std::nullopt;
}

/// "1.0" and not "1": so a reader without the table can tell it from a whole number.
std::string number_text(double value) {
  const auto text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

/// The objection of `use` to its argument.
template <typename Use>
Problem problem_of(const Use& use) {
  try {
    use();
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

/// The fault in one entry of cluster.workers.
Problem check_worker(const toml::node& node) {
  const auto* spec = node.as_string();
  if (!spec) return unexpected_type("an array of strings", node) + " in it";
  return problem_of([&] { parse_worker_spec(spec->get()); });
}

Problem read_weights(const toml::array& array, std::vector<double>& to) {
  std::vector<double> weights;
  for (const toml::node& element : array) {
    const auto weight = as_number(element);
    if (!weight) return unexpected_type("an array of numbers", element) + " in it";
    if (!kNotNegative.contains(*weight)) {
      return fmt::format("expected shares of at least 0, found {}", *weight);
    }
    weights.push_back(*weight);
  }
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 0; })) {
    return "expected at least one share above 0";
  }
  to = std::move(weights);
  return std::nullopt;
}

/// A text, checked by `problem_of`.
template <typename ProblemOf>
Binding checked_text(std::string& to, ProblemOf problem_of) {
  const auto read = [&to, problem_of = std::move(problem_of)](const toml::node& node) -> Problem {
    const auto* value = node.as_string();
    if (!value) return unexpected_type("a string", node);
    if (auto problem = problem_of(value->get())) return problem;
    to = value->get();
    return std::nullopt;
  };
  return {read, [&to] { return toml_string(to); }, true};
}

/// The text of a value that word_or_weights() binds.
std::string word_or_list(const std::string& word, const std::vector<double>& weights) {
  return weights.empty() ? toml_string(word) : fmt::format("[{}]", fmt::join(weights, ", "));
}

constexpr std::size_t kMostServers = 64;

}  // namespace

std::string Range::text() const {
  const auto words = fmt::format(" {} {}", above_min ? "greater than" : "of at least", min);
  if (max == kMaxNumber) return words;
  return words + fmt::format(" and {} {}", below_max ? "less than" : "at most", max);
}

Binding whole(std::int64_t& to, std::int64_t min, std::int64_t max) {
  return whole_number(to, min, max);
}

Binding whole(std::uint64_t& to, std::int64_t min, std::int64_t max) {
  return whole_number(to, min, max);
}

Binding number(double& to, Range range) {
  const auto read = [&to, range](const toml::node& node) -> Problem {
    const auto value = as_number(node);
    if (!value) return unexpected_type("a number", node);
    if (!range.contains(*value)) {
      return fmt::format("expected a number{}, found {}", range.text(), *value);
    }
    to = *value;
    return std::nullopt;
  };
  return {read, [&to] { return number_text(to); }};
}

Binding numbers(std::vector<double>& to, Range range) {
  const auto read = [&to, range](const toml::node& node) -> Problem {
    const auto* array = node.as_array();
    if (!array) return unexpected_type("an array of numbers", node);
    std::vector<double> numbers(array->size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (auto problem = number(numbers[i], range).read((*array)[i])) return *problem + " in it";
    }
    to = std::move(numbers);
    return std::nullopt;
  };
  return {read, [&to] { return fmt::format("[{}]", fmt::join(to, ", ")); }};
}

Binding flag(bool& to) {
  const auto read = [&to](const toml::node& node) -> Problem {
    const auto* value = node.as_boolean();
    if (!value) return unexpected_type("true or false", node);
    to = value->get();
    return std::nullopt;
  };
  return {read, [&to] { return fmt::format("{}", to); }};
}

Binding text(std::string& to) {
  return checked_text(to, [](const std::string&) { return Problem(); });
}

Binding one_of(std::string& to, std::vector<std::string> choices) {
  return checked_text(to, [choices = std::move(choices)](const std::string& word) -> Problem {
    if (std::ranges::find(choices, word) != choices.end()) return std::nullopt;
    return fmt::format("expected \"{}\", found {}", fmt::join(choices, "\" or \""),
                       toml_string(word));
  });
}

Binding endpoint(std::string& to) {
  return checked_text(to, [](const std::string& address) {
    return problem_of([&] {
      if (!address.empty()) net::parse_endpoint(address);
    });
  });
}

Binding worker_specs(std::vector<std::string>& to) {
  const auto read = [&to](const toml::node& node) -> Problem {
    const auto* array = node.as_array();
    if (!array) return unexpected_type("an array of strings", node);
    std::vector<std::string> specs;
    for (const toml::node& element : *array) {
      if (auto problem = check_worker(element)) return problem;
      specs.push_back(element.as_string()->get());
    }
    to = std::move(specs);
    return std::nullopt;
  };
  const auto write = [&to] {
    std::vector<std::string> parts;
    for (const std::string& value : to) parts.push_back(toml_string(value));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  };
  return {read, write};
}

namespace {

/// One of some words, or a weight for each rank.
Binding word_or_weights(std::string expected, std::vector<std::string> words,
                        std::function<void(const std::string&)> take_word,
                        std::function<void(std::vector<double>)> take_weights,
                        std::function<std::string()> write) {
  const auto read = [=](const toml::node& node) -> Problem {
    if (const auto* array = node.as_array()) {
      std::vector<double> weights;
      if (auto problem = read_weights(*array, weights)) return problem;
      take_weights(std::move(weights));
      return std::nullopt;
    }
    const auto* word = node.as_string();
    if (!word) return unexpected_type(expected, node);
    if (std::ranges::find(words, word->get()) == words.end()) {
      return fmt::format("expected {}, found {}", expected, toml_string(word->get()));
    }
    take_word(word->get());
    return std::nullopt;
  };
  return {read, std::move(write)};
}

}  // namespace

Binding balance_policy(ParallelConfig& to) {
  return word_or_weights(R"("auto", "equal" or an array of shares like [3, 1])", {"auto", "equal"},
                         [&to](const std::string& word) {
                           to.balance =
                               word == "auto" ? balance::Policy::Auto : balance::Policy::Equal;
                           to.weights.clear();
                         },
                         [&to](std::vector<double> weights) {
                           to.balance = balance::Policy::Fixed;
                           to.weights = std::move(weights);
                         },
                         [&to]() -> std::string {
                           if (to.balance == balance::Policy::Fixed) {
                             return fmt::format("[{}]", fmt::join(to.weights, ", "));
                           }
                           return to.balance == balance::Policy::Auto ? "\"auto\"" : "\"equal\"";
                         });
}

Binding shard_weights(ZeroConfig& to) {
  return word_or_weights(R"("memory", "speed", "equal" or an array of weights like [3, 1])",
                         {"memory", "speed", "equal"},
                         [&to](const std::string& word) {
                           to.shards = word;
                           to.weights.clear();
                         },
                         [&to](std::vector<double> weights) {
                           to.shards.clear();
                           to.weights = std::move(weights);
                         },
                         [&to] { return word_or_list(to.shards, to.weights); });
}

Binding rising_numbers(std::vector<std::int64_t>& to) {
  const auto read = [&to](const toml::node& node) -> Problem {
    const auto* array = node.as_array();
    if (!array) return unexpected_type("an array of whole numbers like [2, 5]", node);
    std::vector<std::int64_t> numbers;
    for (const toml::node& element : *array) {
      const auto* number = element.as_integer();
      if (!number) return unexpected_type("an array of whole numbers", element) + " in it";
      const auto before = numbers.empty() ? 0 : numbers.back();
      if (number->get() <= before) {
        return fmt::format(
            "expected whole numbers above 0, each larger than the one before, found "
            "{} after {}",
            number->get(), before);
      }
      numbers.push_back(number->get());
    }
    to = std::move(numbers);
    return std::nullopt;
  };
  return {read, [&to] { return fmt::format("[{}]", fmt::join(to, ", ")); }};
}

Binding tensor_parts(MeshConfig& to) {
  auto binding =
      word_or_weights(R"("equal", "speed" or an array of weights like [2, 1])", {"equal", "speed"},
                      [&to](const std::string& word) {
                        to.tensor_parts = word;
                        to.tensor_weights.clear();
                      },
                      [&to](std::vector<double> weights) {
                        to.tensor_parts = "equal";
                        to.tensor_weights = std::move(weights);
                      },
                      [&to] { return word_or_list(to.tensor_parts, to.tensor_weights); });
  binding.read = [&to, others = std::move(binding.read)](const toml::node& node) -> Problem {
    const auto* array = node.as_array();
    if (!array || !array->empty()) return others(node);
    to.tensor_parts = "equal";
    to.tensor_weights.clear();
    return std::nullopt;
  };
  return binding;
}

Binding word_or_count(std::string& to, std::vector<std::string> words) {
  const auto read = [&to, words](const toml::node& node) -> Problem {
    const auto* word = node.as_string();
    if (word && std::ranges::find(words, word->get()) != words.end()) {
      to = word->get();
      return std::nullopt;
    }
    const auto* count = node.as_integer();
    if (count && count->get() >= 1) {
      to = fmt::format("{}", count->get());
      return std::nullopt;
    }
    return fmt::format("expected \"{}\" or a whole number of at least 1, found {}",
                       fmt::join(words, "\", \""),
                       word    ? toml_string(word->get())
                       : count ? fmt::format("{}", count->get())
                               : std::string(type_name(node)));
  };
  const auto write = [&to, words] {
    return std::ranges::find(words, to) != words.end() ? toml_string(to) : to;
  };
  return {read, write};
}

Binding server_weights(ServersConfig& to) {
  constexpr auto kExpected = "a number of servers or an array of weights like [3, 1]";
  const auto read = [&to](const toml::node& node) -> Problem {
    std::vector<double> weights;
    if (const auto* count = node.as_integer()) {
      if (count->get() < 1 || count->get() > static_cast<std::int64_t>(kMostServers)) {
        return fmt::format("expected 1 to {} servers, found {}", kMostServers, count->get());
      }
      weights.assign(static_cast<std::size_t>(count->get()), 1.0);
    } else if (const auto* array = node.as_array()) {
      for (const toml::node& element : *array) {
        const auto weight = as_number(element);
        if (!weight || !kPositive.contains(*weight)) return "expected weights greater than 0";
        weights.push_back(*weight);
      }
      if (weights.empty() || weights.size() > kMostServers) {
        return fmt::format("expected 1 to {} servers, found {}", kMostServers, weights.size());
      }
    } else {
      return unexpected_type(kExpected, node);
    }
    to.weights = std::move(weights);
    to.weigh = node.is_integer();
    return std::nullopt;
  };
  const auto write = [&to]() -> std::string {
    return to.weigh ? fmt::format("{}", to.weights.size())
                    : fmt::format("[{}]", fmt::join(to.weights, ", "));
  };
  return {read, write};
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string_view type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "a whole number";
    case toml::node_type::floating_point: return "a floating-point number";
    case toml::node_type::boolean: return "a boolean";
    case toml::node_type::date: return "a date";
    case toml::node_type::time: return "a time";
    case toml::node_type::date_time: return "a date and time";
    case toml::node_type::none: break;
  }
  return "nothing";
}

}  // namespace bimetal::job
