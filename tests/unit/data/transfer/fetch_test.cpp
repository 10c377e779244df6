#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bimetal/base/error.h"
#include "bimetal/data/transfer/file_transfer.h"
#include "support/environment.h"
#include "support/temporary_folder.h"

namespace bimetal::data {
namespace {

using ::bimetal::test::contents_of;
using ::bimetal::test::names_in;
using ::bimetal::test::put_contents;
using ::testing::HasSubstr;

class FetchDataset : public ::testing::Test {
 protected:
  std::filesystem::path fetch(const Fetch& with) {
    return fetch_dataset(cache_, "memory://a?secret", {"x"}, with, std::chrono::seconds(1), meter_);
  }
  static Fetch bringing(const std::string& contents) {
    return [contents](const FetchRequest& request, progress::Meter&) {
      put_contents(request.into / "x", contents);
      return Fetched::complete;
    };
  }

  bimetal::test::TemporaryFolder folder_;
  bimetal::test::Environment own_{"BIMETAL_CACHE", folder_.path().string()};
  Cache cache_;
  progress::Meter meter_;
};

TEST_F(FetchDataset, ReplacesTheWholeFolder) {
  const auto place = fetch(bringing("old"));
  EXPECT_EQ(contents_of(place / "x"), "old");
  EXPECT_EQ(fetch(bringing("new")), place);
  EXPECT_EQ(contents_of(place / "x"), "new");
  EXPECT_EQ(names_in(place.parent_path()).size(), 1u) << "nothing lies beside it";
}

TEST_F(FetchDataset, KeepsWhatIsThereIfItIsUnchangedOrTheFetchFails) {
  const auto place = fetch(bringing("old"));
  fetch([&](const FetchRequest& request, progress::Meter&) {
    EXPECT_EQ(request.current, place);
    return Fetched::unchanged;
  });
  const auto failing = [](const FetchRequest& request, progress::Meter&) -> Fetched {
    put_contents(request.into / "x", "half");
    throw Error(ErrorCode::System, "cable pulled");
  };
  EXPECT_THROW(fetch(failing), Error);
  EXPECT_EQ(contents_of(place / "x"), "old");
  EXPECT_EQ(names_in(place.parent_path()).size(), 1u);
}

TEST_F(FetchDataset, IsUnsupportedWithoutAWay) {
  try {
    fetch({});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_THAT(error.what(), Not(HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace bimetal::data
