#include "bimetal/data/transfer/data_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/net/mesh.h"
#include "bimetal/parallel/server/directory/directory.h"
#include "bimetal/rendezvous/bootstrap.h"
#include "bimetal/train/server/server_setup.h"
#include "support/environment.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "unit/train/training_job.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;
namespace ps = parallel::server;
using bimetal::test::contents_of;
using bimetal::test::names_in;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ps::Credentials own(net::Encryption encryption = net::Encryption::off,
                    const char* token = "the token of this test") {
  return {net::Token::from_text(token), encryption, "job"};
}

class DataLink : public ::testing::Test {
 protected:
  DataLink() {
    job_.data.path = (folder_ / "none").string();
    job_.parallel.timeout_s = 20;
    send();
  }

  void send(net::Encryption encryption = net::Encryption::off) {
    server_.reset();
    server_ =
        std::make_unique<DataServer>(net::Endpoint{"127.0.0.1", 0}, own(encryption),
                                     find_dataset("mnist", images_.path()), "pc", seconds(20));
  }

  DatasetFiles find(const ps::Credentials& with = own()) {
    auto alone = comm::make_group(net::make_solo_mesh("mac"), {});
    train::TrainerOptions options;
    options.host_name = "mac";
    ps::ServerDirectory directory({.store = store_.endpoint(),
                                   .token = own().token,
                                   .deadline = Deadline::after(seconds(20))});
    directory.publish_data(at_);
    const train::DataSender sender{&directory, with};
    return train::find_job_data(alone, job_, options, sender, told_);
  }
  Error error_of_find(const ps::Credentials& with = own()) {
    return error_of([&] { find(with); }).value_or(Error(ErrorCode::Internal, "found"));
  }

  void expect_same_files(const fs::path& folder) {
    EXPECT_EQ(names_in(folder), names_in(images_.path()));
    for (const auto& name : names_in(folder)) {
      EXPECT_EQ(contents_of(folder / name), contents_of(images_.path() / name)) << name;
    }
  }
  fs::path sent() const { return folder_ / "cache" / "data"; }

  train::test::SyntheticImages images_{150'000, 10};  // three pieces
  bimetal::test::TemporaryFolder folder_;
  bimetal::test::Environment cache_{"BIMETAL_CACHE", (folder_ / "cache").string()};
  job::JobConfig job_ = [] {
    job::JobConfig job;
    job.data.name = "mnist";
    return job;
  }();
  std::unique_ptr<DataServer> server_;
  const rendezvous::StoreServer store_{{"127.0.0.1", 0}, own().token};
  std::optional<net::Endpoint> at_ = net::Endpoint{};
  train::test::Recorder told_;
};

TEST_F(DataLink, KeepsWhatItIsSentPlainAndEncrypted) {
  for (const auto encryption : {net::Encryption::off, net::Encryption::on}) {
    send(encryption);
    at_ = server_->endpoint();
    const auto files = find(own(encryption));
    expect_same_files(files.folder);
    EXPECT_THAT(server_->take_notes(), ElementsAre(HasSubstr("no data on mac (")));
    find(own(encryption));
    EXPECT_THAT(server_->take_notes(), IsEmpty()) << "it is in the cache";
    EXPECT_EQ(names_in(sent()).size(), 1u);
    fs::remove_all(sent());
  }
  EXPECT_THAT(told_.notices.front(), HasSubstr("MiB to be kept there"));
  EXPECT_EQ(told_.notices.size(), 2u);
}

TEST_F(DataLink, WhatIsForbiddenOrNowhereIsSaid) {
  at_ = server_->endpoint();
  job_.data.send_max_gb = 0.001;
  EXPECT_THAT(error_of_find().what(), HasSubstr("send_max_gb = 0.001"));
  job_.data.send = false;
  EXPECT_THAT(error_of_find().what(), HasSubstr("[data] send = false"));
  const auto path = job_.data.path;
  job_.data = {};
  job_.data.name = "mnist";
  job_.data.path = path;
  at_.reset();
  const auto nowhere = error_of_find();
  EXPECT_EQ(nowhere.code(), ErrorCode::InvalidArgument);
  EXPECT_THAT(nowhere.what(), HasSubstr("has none either"));
  EXPECT_THAT(nowhere.what(), HasSubstr(job_.data.path));
}

TEST_F(DataLink, StrangersGetNothing) {
  at_ = server_->endpoint();
  EXPECT_EQ(error_of_find(own(net::Encryption::off, "another token, of a stranger")).code(),
            ErrorCode::Unauthorized);
  EXPECT_THAT(server_->take_notes(), IsEmpty());
}

TEST_F(DataLink, AFileThatIsNotWhatItWasIsNotKept) {
  at_ = server_->endpoint();
  find();
  fs::remove_all(sent());
  // The server has read it before.
  std::fstream labels(images_.path() / "t10k-labels-idx1-ubyte",
                      std::ios::binary | std::ios::in | std::ios::out);
  labels.seekp(8);
  labels.put('\x09').put('\x08').put('\x07');
  labels.close();
  const auto error = error_of_find();
  EXPECT_EQ(error.code(), ErrorCode::CorruptData) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("t10k-labels-idx1-ubyte"));
  EXPECT_THAT(names_in(sent()), IsEmpty());
}

}  // namespace
}  // namespace bimetal::data
