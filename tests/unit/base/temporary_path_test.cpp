#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "support/forked_child.h"
#include "support/temporary_folder.h"

namespace bimetal {
namespace {

namespace fs = std::filesystem;
using Kind = TemporaryPath::Kind;
using test::contents_of;
using test::names_in;
using test::put_contents;

TEST(TemporaryPath, IsRemovedUnlessMoved) {
  const test::TemporaryFolder folder;
  for (const Kind kind : {Kind::file, Kind::folder}) {
    const TemporaryPath temporary(folder / "target", kind);
    EXPECT_TRUE(fs::exists(temporary.path()));
    EXPECT_EQ(names_in(folder.path()).size(), 1u);
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(TemporaryPath, AFolderReplacesAnotherWithAllItsContents) {
  const test::TemporaryFolder folder;
  fs::create_directory(folder / "target");
  put_contents(folder / "target/old", "old");
  {
    TemporaryPath temporary(folder / "target", Kind::folder);
    put_contents(temporary.path() / "new", "new");
    temporary.move_into_place();
  }
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"target"});
  EXPECT_EQ(names_in(folder / "target"), std::set<std::string>{"new"});
}

TEST(TemporaryPath, NamesTheTargetWhenItCannotBeMade) {
  const test::TemporaryFolder folder;
  for (const Kind kind : {Kind::file, Kind::folder}) {
    try {
      const TemporaryPath temporary(folder / "missing/target", kind);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::System);
      EXPECT_EQ(std::string(error.what()), "cannot write " + (folder / "missing/target").string() +
                                               ": No such file or directory");
    }
  }
}

/// A child that makes a temporary file and a temporary folder, says so, and goes on living.
class Maker {
 public:
  explicit Maker(const test::TemporaryFolder& folder) : child_([&] { return make(folder); }) {
    test::wait_for_name(folder.path(), "ready");
    fs::remove(folder / "ready");
  }
  void kill() { child_.kill_and_wait(); }

 private:
  static int make(const test::TemporaryFolder& folder) {
    const TemporaryPath file(folder / "step-1", Kind::file);
    const TemporaryPath inner(folder / "step-2", Kind::folder);
    put_contents(inner.path() / "part", "part");
    put_contents(folder / "ready", "");
    for (;;) pause();
  }
  test::ForkedChild child_;
};

TEST(RemoveLeftovers, TakesThoseOfTheDeadAndLeavesThoseOfTheLiving) {
  const test::TemporaryFolder folder;
  const TemporaryPath mine(folder / "step-3", Kind::folder);
  Maker maker(folder);
  remove_leftovers(folder.path(), "step-1", Leftovers::of_numbering);
  EXPECT_EQ(names_in(folder.path()).size(), 3u);
  maker.kill();
  EXPECT_EQ(names_in(folder.path()).size(), 3u) << "the kill left nothing to clean up";
  remove_leftovers(folder.path(), "step-1", Leftovers::of_numbering);
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{mine.path().filename().string()});
}

/// The leftovers that remain for each of these targets.
std::set<std::string> left_of(const std::set<std::string>& targets, std::string_view name,
                              Leftovers which) {
  const test::TemporaryFolder folder;
  const std::string tail = ".0123456789abcdef.tmp";
  for (const auto& target : targets) put_contents(folder / ("." + target + tail), "");
  remove_leftovers(folder.path(), name, which);
  std::set<std::string> left;
  for (const auto& hidden : names_in(folder.path())) {
    left.insert(hidden.substr(1, hidden.size() - 1 - tail.size()));
  }
  return left;
}

TEST(RemoveLeftovers, TakesThoseOfTheNameThatIsMeant) {
  const std::set<std::string> targets = {"one",           "one-more", "on",
                                         "step-00000001", "step-20",  "step-2b"};
  const auto all_but = [&](const std::set<std::string>& gone) {
    auto left = targets;
    for (const auto& name : gone) left.erase(name);
    return left;
  };
  EXPECT_EQ(left_of(targets, "one", Leftovers::of_name), all_but({"one"}));
  EXPECT_EQ(left_of(targets, "one", Leftovers::of_numbering), all_but({"one"}));
  EXPECT_EQ(left_of(targets, "step-20", Leftovers::of_name), all_but({"step-20"}));
  EXPECT_EQ(left_of(targets, "step-3", Leftovers::of_numbering),
            all_but({"step-00000001", "step-20"}));
  EXPECT_EQ(left_of(targets, "", Leftovers::of_name), targets);
  EXPECT_TRUE(left_of(targets, "", Leftovers::of_all).empty());
}

TEST(RemoveLeftovers, TouchesNothingElse) {
  const test::TemporaryFolder folder;
  const std::set<std::string> others = {
      "step-1",
      ".step-1.tmp",
      ".step-1.0123456789abcde.tmp",    // a digit too few
      ".step-1.0123456789abcdeg.tmp",   // not hexadecimal
      "step-1.0123456789abcdef.tmp",    // not hidden
      ".step-1.0123456789abcdef.tmp.x"  // another ending
  };
  for (const auto& name : others) put_contents(folder / name, "");
  remove_leftovers(folder.path(), "", Leftovers::of_all);
  EXPECT_EQ(names_in(folder.path()), others);
  remove_leftovers(folder / "missing", "step-1");
}

}  // namespace
}  // namespace bimetal
