#include <windows.h>
// After it, since it needs its types.
#include <shellapi.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string_view>

#include "bimetal/base/unicode/utf8.h"
#include "bimetal/launch/system/environment.h"

namespace bimetal::launch {
namespace {

bool has_ending_of_program(const std::string& name) {
  auto ending = name.size() < 4 ? std::string() : name.substr(name.size() - 4);
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".exe" || ending == ".com";
}

}  // namespace

NamedValues own_environment() {
  const std::unique_ptr<wchar_t, decltype(&FreeEnvironmentStringsW)> block(GetEnvironmentStringsW(),
                                                                           FreeEnvironmentStringsW);
  NamedValues variables;
  for (const wchar_t* entry = block.get(); *entry != L'\0';) {
    const std::wstring_view text(entry);
    const auto equals = text.find(L'=', 1);
    if (text.front() != L'=' && equals != std::wstring_view::npos) {
      variables.emplace_back(utf8_of_wide(text.substr(0, equals)),
                             utf8_of_wide(text.substr(equals + 1)));
    }
    entry += text.size() + 1;
  }
  return variables;
}

std::optional<std::string> environment_variable(const std::string& name) {
  const auto wide = wide_of_utf8(name);
  std::wstring value;
  SetLastError(ERROR_SUCCESS);
  auto size = GetEnvironmentVariableW(wide.c_str(), nullptr, 0);
  if (size == 0 && GetLastError() == ERROR_ENVVAR_NOT_FOUND) return std::nullopt;
  value.resize(size);
  size = GetEnvironmentVariableW(wide.c_str(), value.data(), size);
  return utf8_of_wide({value.data(), size});
}

void set_environment_variable(const std::string& name, const std::string& value) {
  const auto wide_name = wide_of_utf8(name), wide_value = wide_of_utf8(value);
  // getenv() reads a copy that is the C library's, which takes an empty value for none.
  _wputenv_s(wide_name.c_str(), wide_value.c_str());
  SetEnvironmentVariableW(wide_name.c_str(), wide_value.c_str());
}

std::optional<std::string> home_folder() {
  return environment_variable("USERPROFILE");
}

bool is_executable(const std::string& path) {
  // Not is_regular_file(): what Windows' store puts into PATH are links of a kind of its own.
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(path_of_utf8(path), ignored);
  return has_ending_of_program(path) && std::filesystem::exists(status) &&
         !std::filesystem::is_directory(status);
}

std::vector<std::string> executable_names(const std::string& name) {
  if (has_ending_of_program(name)) return {name};
  return {name + ".exe", name + ".com"};
}

bool names_a_folder(const std::string& name) {
  return name.find_first_of("/\\:") != std::string::npos;
}

std::vector<std::string> program_folders() {
  std::istringstream path(environment_variable("PATH").value_or(""));
  std::vector<std::string> folders;
  for (std::string folder; std::getline(path, folder, ';');) {
    std::erase(folder, '"');
    if (!folder.empty()) folders.push_back(folder);
  }
  return folders;
}

void add_program_folder(const std::string& folder) {
  const auto folders = program_folders();
  if (std::ranges::find(folders, folder) != folders.end()) return;
  const auto path = environment_variable("PATH").value_or("");
  set_environment_variable("PATH", path + ";" + folder);
}

namespace {

/// A backslash is itself unless a quote follows, which "the C runtime's rules" let it escape: those
/// before a quote are doubled, as are those before the one that closes the word.
void append_quoted(std::wstring& line, std::wstring_view word) {
  line += L'"';
  std::size_t backslashes = 0;
  for (const wchar_t character : word) {
    if (character == L'"') line.append(backslashes + 1, L'\\');
    backslashes = character == L'\\' ? backslashes + 1 : 0;
    line += character;
  }
  line.append(backslashes, L'\\');
  line += L'"';
}

}  // namespace

std::wstring command_line_of(const std::vector<std::string>& words) {
  std::wstring line;
  for (const auto& text : words) {
    const auto word = wide_of_utf8(text);
    if (!line.empty()) line += L' ';
    if (!word.empty() && word.find_first_of(L" \t\n\v\"") == std::wstring::npos) {
      line += word;
    } else {
      append_quoted(line, word);
    }
  }
  return line;
}

std::vector<std::string> own_command_line() {
  int count = 0;
  wchar_t** const words = CommandLineToArgvW(GetCommandLineW(), &count);
  std::vector<std::string> texts;
  for (int i = 0; words != nullptr && i < count; ++i) texts.push_back(utf8_of_wide(words[i]));
  LocalFree(words);
  return texts;
}

}  // namespace bimetal::launch
