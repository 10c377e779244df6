#pragma once
// Names of the objects by which processes of one user find each other's memory.

#include <optional>
#include <string>
#include <string_view>

namespace bimetal::net {

/// 128 random bits in hexadecimal, as it travels to the others.
std::string new_section_name();

/// What Windows knows a section by, or, with a `suffix`, what goes with it; seen in this session of
/// the system alone. None for what is no name of ours, which may say anything.
std::optional<std::wstring> object_name(std::string_view name, std::wstring_view suffix = {});

}  // namespace bimetal::net
