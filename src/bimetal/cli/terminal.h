#pragma once
// Standard output and standard error as a person sees them: a line that is rewritten in place where
// that is possible, plain lines elsewhere, columns that line up.
//
// A program's error messages and exit statuses; docs/errors.md lists them for users.

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::cli {

enum class Colour { plain, bold, green, yellow, red };

/// Writes to standard output. Use from one thread.
class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// Whether lines are rewritten in place: standard output is a terminal that somebody looks at.
  bool live() const noexcept { return live_; }

  /// A line that stays; a live line moves below it.
  void print(std::string_view line);

  /// Rewrites the live line, cut to the width of the terminal. Only where live().
  void rewrite(const std::string& line);

  /// Takes the live line away.
  void clear();

  /// `text` in colour where live().
  std::string coloured(Colour colour, std::string_view text) const;

 private:
  bool live_ = false;
  bool line_shown_ = false;
};

/// The size of standard output's terminal; 80 by 24 if it is none.
struct TerminalSize {
  int columns = 80, rows = 24;
};
TerminalSize terminal_size();

/// Whether a line on standard error can be taken away again.
bool errors_are_live();

/// Takes away a live line that another process may have left on the terminal of standard error, so
/// that the next text begins on a line of its own. Nothing happens if it is no terminal.
void clear_line_of_others();

/// A line on standard error that stays, in place of whatever is live there.
void print_to_errors(std::string_view line);

/// Writes and flushes. Text that cannot be written is dropped: a reader that has gone (a closed
/// pipe or terminal) is no reason to end a job.
void write_to(std::FILE* stream, std::string_view text) noexcept;

/// To be called at the end. Error(System) if something for standard output was dropped for another
/// reason: who reads that file later would miss it.
void require_printed();

/// The first `columns` characters of UTF-8 text, ending in "…" where it was cut.
std::string cut_to(const std::string& text, int columns);

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

/// Shows nothing where standard error is no terminal that lines can be taken off. Use from one
/// thread.
class StatusLine {
 public:
  StatusLine() = default;
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Replaces the text shown before.
  void show(const std::string& text);
};

inline constexpr int kSuccess = 0;
inline constexpr int kUsage = 2;                                 ///< same as InvalidArgument
inline constexpr int kInterrupted = launch::kInterruptedStatus;  ///< by Ctrl-C or SIGTERM

/// From 2 on, in the order of ErrorCode. 1 is never used: shells and tools use it for themselves.
int exit_status(ErrorCode code) noexcept;

/// As to_error. Of errors that become Internal only the first line (libtorch's texts go on with a
/// stack trace).
Error as_error(const std::exception& exception);

/// Prints "bimetal: error: …" to standard error.
void print_error(const Error& error);

/// Gets a line's kind (warning, error, output, …) and its text.
using Listener = std::function<void(std::string_view kind, std::string_view text)>;

/// From now on warnings of the library go to standard error, and more with BIMETAL_DEBUG; a rank
/// says which one it is. `also`: gets them, too, until another call takes its place.
void show_warnings(const Listener& also = {});

/// A line that this process has printed, for the log of the last call; nothing where it has none.
/// May be called from any thread.
void note_output(std::string_view line);

}  // namespace bimetal::cli
