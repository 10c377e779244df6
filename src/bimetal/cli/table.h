#pragma once
// Columns that line up.

#include <string>
#include <vector>

namespace bimetal::cli {

using TableRow = std::vector<std::string>;

/// One line for each row, columns padded to their widest cell and two spaces apart. The first
/// `left_columns` are aligned to the left, the others (numbers) to the right. Widths count
/// characters of UTF-8, not bytes. Rows may be shorter than others.
std::vector<std::string> aligned(const std::vector<TableRow>& rows, std::size_t left_columns);

/// "17.3 GiB", "512 MiB".
std::string memory_text(std::uint64_t bytes);

/// Three significant digits, as measurements deserve: "1230", "95.1", "0.83"; "–" for 0 or less,
/// which stands for "not measured".
std::string figure_text(double value);

}  // namespace bimetal::cli
