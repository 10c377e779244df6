#pragma once
// The valid name that a mistyped one most likely means, for error messages.

#include <span>
#include <string_view>

namespace bimetal {

/// The entry of `known` that takes the fewest edits to reach from `word`: inserting, removing or
/// replacing a character, or swapping two neighbours (optimal string alignment distance; Damerau
/// 1964). Upper and lower case, and '-' and '_', count as alike. Among equals the first listed
/// wins. Empty only if `known` is empty.
std::string_view nearest_name(std::string_view word, std::span<const std::string_view> known);

}  // namespace bimetal
