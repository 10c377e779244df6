#include "bimetal/launch/rank_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "bimetal/base/error.h"

namespace bimetal::launch {
namespace {

/// More nodes than any cluster has: a damaged list must not fill the memory.
constexpr std::size_t kMostNodes = 1 << 18;
constexpr std::size_t kMostDigits = 9;
constexpr int kMostBrackets = 8;

Error malformed(std::string_view kind, std::string_view text) {
  return {ErrorCode::InvalidArgument,
          fmt::format("Slurm's list of {} \"{}\" is not one", kind, text)};
}

bool to_number(std::string_view text, int& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0;
}

/// Splits at commas that are not inside brackets.
std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += (text[i] == '[') - (text[i] == ']');
    if (text[i] == ',' && depth == 0) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  parts.push_back(text.substr(begin));
  return parts;
}

/// "01-03,07" as 01, 02, 03, 07.
std::vector<std::string> expand_numbers(std::string_view ranges, std::string_view whole) {
  std::vector<std::string> numbers;
  for (const auto range : split_at_commas(ranges)) {
    const auto dash = range.find('-');
    const auto first_text = range.substr(0, dash);
    const auto last_text = dash == std::string_view::npos ? first_text : range.substr(dash + 1);
    int first = 0, last = 0;
    if (first_text.size() > kMostDigits || !to_number(first_text, first) ||
        !to_number(last_text, last) || last < first ||
        static_cast<std::size_t>(last - first) >= kMostNodes - numbers.size()) {
      throw malformed("nodes", whole);
    }
    for (int number = first; number <= last; ++number) {
      numbers.push_back(fmt::format("{:0{}}", number, first_text.size()));
    }
  }
  return numbers;
}

/// One name with so many pairs of brackets at most.
std::vector<std::string> expand_name(std::string_view name, std::string_view whole, int brackets) {
  const auto open = name.find('[');
  if (open == std::string_view::npos) {
    if (name.empty() || name.find(']') != std::string_view::npos) throw malformed("nodes", whole);
    return {std::string(name)};
  }
  const auto close = name.find(']', open);
  if (close == std::string_view::npos || brackets == 0) throw malformed("nodes", whole);
  const auto rest = name.substr(close + 1);
  const auto tails =
      rest.empty() ? std::vector<std::string>{""} : expand_name(rest, whole, brackets - 1);
  std::vector<std::string> names;
  for (const auto& number : expand_numbers(name.substr(open + 1, close - open - 1), whole)) {
    for (const auto& tail : tails) {
      names.push_back(std::string(name.substr(0, open)) + number + tail);
      if (names.size() > kMostNodes) throw malformed("nodes", whole);
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view text) {
  std::vector<std::string> nodes;
  for (const auto name : split_at_commas(text)) {
    const auto some = expand_name(name, text, kMostBrackets);
    if (nodes.size() + some.size() > kMostNodes) throw malformed("nodes", text);
    nodes.insert(nodes.end(), some.begin(), some.end());
  }
  return nodes;
}

std::vector<int> expand_tasks_per_node(std::string_view text) {
  std::vector<int> tasks;
  for (const auto part : split_at_commas(text)) {
    const auto repeat = part.find("(x");
    int count = 0, times = 1;
    bool good = to_number(part.substr(0, repeat), count) && count > 0;
    if (good && repeat != std::string_view::npos) {
      const auto number = part.substr(repeat + 2);
      good = number.ends_with(')') && to_number(number.substr(0, number.size() - 1), times) &&
             times > 0;
    }
    if (!good || tasks.size() + static_cast<std::size_t>(times) > kMostNodes) {
      throw malformed("tasks per node", text);
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(times), count);
  }
  return tasks;
}

}  // namespace bimetal::launch
