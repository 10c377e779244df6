#include <windows.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include "bimetal/base/unicode/windows_text.h"
#include "bimetal/launch/system/environment.h"

namespace bimetal::launch {

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

}  // namespace bimetal::launch
