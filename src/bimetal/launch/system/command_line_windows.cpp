#include "bimetal/launch/system/command_line_windows.h"

#include <windows.h>
// After it, since it needs its types.
#include <shellapi.h>

#include "bimetal/base/unicode/windows_text.h"

namespace bimetal::launch {
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
