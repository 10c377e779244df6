#include "bimetal/data/transfer/file_transfer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "support/temporary_folder.h"
#include "support/thread_ranks.h"

namespace bimetal::data {
namespace {

using ::bimetal::test::contents_of;
using ::bimetal::test::put_contents;
using ::bimetal::test::TemporaryFolder;

constexpr std::size_t kChunk = 1000;

std::string text_of(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * i >> 5);
  return text;
}

class FileTransfer : public ::testing::Test {
 protected:
  TransferOptions options() const {
    return {.chunk_timeout = std::chrono::seconds(20), .chunk_bytes = kChunk};
  }
  bimetal::testing::RankBody transfer_body(const std::vector<SentFile>& files) {
    return [this, files](int rank, comm::Group group) {
      progress::Meter meter;
      const auto place = folder_ / std::to_string(rank);
      if (rank == 0) return send_files(group, place, files, meter, options());
      std::filesystem::create_directory(place);
      receive_files(group, place, files, meter, options());
      received_ += meter.done();
    };
  }
  void transfer(int ranks, const std::vector<SentFile>& files) {
    bimetal::testing::run_ranks(ranks, transfer_body(files));
  }

  TemporaryFolder folder_;
  std::atomic<std::uint64_t> received_{0};
};

/// How each rank ended that failed. Which of them does so first is left to chance: the others hear
/// of the failure at once, while the one that it happened to waits for its buffers.
std::map<int, ErrorCode> failures(int ranks, const bimetal::testing::RankBody& body) {
  std::mutex mutex;
  std::map<int, ErrorCode> codes;
  const auto noted = [&](int rank, comm::Group group) {
    try {
      body(rank, std::move(group));
    } catch (const Error& error) {
      const std::scoped_lock lock(mutex);
      codes[rank] = error.code();
      throw;
    }
  };
  EXPECT_THROW(bimetal::testing::run_ranks(ranks, noted), Error) << "it went unnoticed";
  return codes;
}

TEST_F(FileTransfer, AFileThatBecameShorterEndsAllRanks) {
  std::filesystem::create_directory(folder_ / "0");
  put_contents(folder_ / "0" / "file", text_of(5 * kChunk));
  const auto codes = failures(3, transfer_body({{"file", 6 * kChunk}}));
  EXPECT_EQ(codes.size(), 3u);
  EXPECT_EQ(codes.at(0), ErrorCode::CorruptData);
}

}  // namespace
}  // namespace bimetal::data
