// --help in other forms: completion for shells, and manual pages. Both are made of the options that
// the commands declare.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/files.h"
#include "bimetal/base/release.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

/// Those that are for people.
std::vector<const CLI::App*> shown_commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); });
}

bool is_shown(const CLI::Option& option) {
  return !option.get_group().empty();
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

/// "--set", "-n".
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const auto& name : option.get_lnames()) names.push_back("--" + name);
  for (const auto& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

/// The options of a command and of those below it.
std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  std::vector<const CLI::Option*> options;
  for (const auto* option : command.get_options()) {
    if (is_shown(*option) && !option->get_positional()) options.push_back(option);
  }
  for (const auto* below : shown_commands(command)) {
    for (const auto* option : options_of(*below)) {
      const auto same = [&](const auto* other) { return names_of(*other) == names_of(*option); };
      if (std::ranges::none_of(options, same)) options.push_back(option);
    }
  }
  return options;
}

std::vector<std::string> words_of(const CLI::App& command) {
  std::vector<std::string> words;
  for (const auto* below : shown_commands(command)) words.push_back(below->get_name());
  for (const auto* option : options_of(command)) {
    for (auto& name : names_of(*option)) words.push_back(std::move(name));
  }
  return words;
}

std::string replaced(std::string_view text,
                     const std::vector<std::pair<char, std::string_view>>& by) {
  std::string result;
  for (const char c : text) {
    const auto found = std::ranges::find(by, c, [](const auto& pair) { return pair.first; });
    if (found == by.end()) {
      result += c;
    } else {
      result += found->second;
    }
  }
  return result;
}

std::string bash_completion(const CLI::App& app) {
  std::string cases, commands;
  for (const auto* command : shown_commands(app)) {
    commands += command->get_name() + " ";
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(),
                         fmt::join(words_of(*command), " "));
  }
  return fmt::format(R"(_bimetal() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{}--help --version" -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  case $current in -*) ;; *) COMPREPLY+=($(compgen -f -- "$current")) ;; esac
}}
complete -o filenames -F _bimetal bimetal
)",
                     commands, cases);
}

/// 'word:description', as _describe takes it.
std::string described_word(std::string_view word, std::string_view what) {
  return fmt::format("'{}:{}' ", word,
                     replaced(what, {{'\'', "'\\''"}, {':', "\\:"}, {'\n', " "}}));
}

std::string zsh_completion(const CLI::App& app) {
  std::string cases, commands;
  for (const auto* command : shown_commands(app)) {
    commands += described_word(command->get_name(), command->get_description());
    std::string words;
    for (const auto* below : shown_commands(*command)) {
      words += described_word(below->get_name(), below->get_description());
    }
    for (const auto* option : options_of(*command)) {
      for (const auto& name : names_of(*option)) {
        words += described_word(name, option->get_description());
      }
    }
    cases += fmt::format("    {}) words_here=({}) ;;\n", command->get_name(), words);
  }
  return fmt::format(R"(#compdef bimetal
_bimetal() {{
  local -a commands words_here
  commands=({})
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $words[2] in
{}  esac
  _describe option words_here
  [[ $PREFIX == -* ]] || _files
}}
compdef _bimetal bimetal
)",
                     commands, cases);
}

std::string fish_completion(const CLI::App& app) {
  const auto quoted = [](std::string_view text) {
    return replaced(text, {{'\'', "\\'"}, {'\\', "\\\\"}, {'\n', " "}});
  };
  std::string text;
  for (const auto* command : shown_commands(app)) {
    text += fmt::format("complete -c bimetal -f -n __fish_use_subcommand -a {} -d '{}'\n",
                        command->get_name(), quoted(command->get_description()));
    const auto seen =
        fmt::format("complete -c bimetal -n '__fish_seen_subcommand_from {}'", command->get_name());
    for (const auto* below : shown_commands(*command)) {
      text += fmt::format("{} -a {} -d '{}'\n", seen, below->get_name(),
                          quoted(below->get_description()));
    }
    for (const auto* option : options_of(*command)) {
      std::string names;
      for (const auto& name : option->get_lnames()) names += " -l " + name;
      for (const auto& name : option->get_snames()) names += " -s " + name;
      text += fmt::format("{}{}{} -d '{}'\n", seen, names, takes_value(*option) ? " -r" : "",
                          quoted(option->get_description()));
    }
  }
  return text;
}

// Manual pages, in roff's macros "man".

std::string roff(std::string_view text) {
  std::string result;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('.') || line.starts_with('\'')) result += "\\&";
    result += replaced(line, {{'\\', "\\e"}, {'-', "\\-"}}) + '\n';
  }
  return result;
}

void add_options(std::string& page, const CLI::App& command) {
  for (const auto* option : command.get_options()) {
    if (!is_shown(*option)) continue;
    const auto name = option->get_positional()
                          ? option->get_name(true)
                          : fmt::format("{}", fmt::join(names_of(*option), ", "));
    const auto value = takes_value(*option) ? " " + option->get_type_name() : std::string();
    page += ".TP\n.B " + roff(name + value) + roff(option->get_description());
  }
}

/// `name`: "bimetal train".
std::string man_page(const CLI::App& command, const std::string& name) {
  const auto title = replaced(name, {{' ', "-"}});
  auto page = fmt::format(".TH \"{}\" 1 \"\" \"bimetal {}\"\n.SH NAME\n", title, release());
  page += roff(fmt::format("{} - {}", title, command.get_description()));
  page += ".SH SYNOPSIS\n.B " + roff(name + " [OPTIONS] …");
  page += ".SH OPTIONS\n";
  add_options(page, command);
  if (const auto below = shown_commands(command); !below.empty()) {
    page += ".SH COMMANDS\n";
    for (const auto* one : below) {
      page += ".TP\n.B " + roff(one->get_name()) + roff(one->get_description());
      if (command.get_parent() == nullptr) continue;  // has a page of its own
      page += ".RS\n";
      add_options(page, *one);
      page += ".RE\n";
    }
  }
  if (const auto footer = command.get_footer(); !footer.empty()) {
    page += ".SH NOTES\n.nf\n" + roff(footer) + ".fi\n";
  }
  return page;
}

int write_pages(const CLI::App& app, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const auto write = [&](const CLI::App& command, const std::string& name) {
    const auto file = folder / (replaced(name, {{' ', "-"}}) + ".1");
    write_file_atomically(file, man_page(command, name));
  };
  write(app, "bimetal");
  const auto commands = shown_commands(app);
  for (const auto* command : commands) write(*command, "bimetal " + command->get_name());
  Terminal().print(fmt::format("{} manual pages in {}; read one with: man {}", commands.size() + 1,
                               folder.string(), (folder / "bimetal-train.1").string()));
  return kSuccess;
}

}  // namespace

void add_reference(CLI::App& app, Action& action) {
  auto* completion = app.add_subcommand("completion", "Print a shell's completion of this command");
  auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("SHELL");
  completion->footer(R"(Examples:
  bimetal completion bash > ~/.local/share/bash-completion/completions/bimetal
  bimetal completion zsh > "${fpath[1]}/_bimetal"
  bimetal completion fish > ~/.config/fish/completions/bimetal.fish)");
  completion->callback([&app, &action, shell] {
    action = [&app, shell] {
      describe_python_commands(app);
      const auto text = *shell == "bash"  ? bash_completion(app)
                        : *shell == "zsh" ? zsh_completion(app)
                                          : fish_completion(app);
      write_to(stdout, text);
      return kSuccess;
    };
  });
  auto* man = app.add_subcommand("man", "Write a manual page of each command");
  auto folder = std::make_shared<std::string>();
  man->add_option("folder", *folder, "Where: a folder man1 below one of MANPATH")
      ->required()
      ->type_name("DIR");
  man->callback([&app, &action, folder] {
    action = [&app, folder] {
      describe_python_commands(app);
      return write_pages(app, *folder);
    };
  });
}

}  // namespace bimetal::cli
