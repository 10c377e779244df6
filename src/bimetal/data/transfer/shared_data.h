#pragma once
// The job's data set on every rank: found on its machine, fetched from a URL, or sent by a rank
// that has it; and made sure to be the same everywhere before anything is computed. docs/data.md.
//
// A data set on its way into the cache of a machine that has none, whatever carries it there.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/data/transfer/cache.h"
#include "bimetal/data/transfer/data_copies.h"
#include "bimetal/data/transfer/file_transfer.h"
#include "bimetal/job/job_config.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/together.h"

namespace bimetal::data {

struct SharedDataOptions {
  std::string host_name = {};  ///< for messages
  Fetch fetch = {};            ///< for data at a URL; empty: those are Unsupported
  /// Longest time without progress, of any rank, and of one piece on the network.
  std::chrono::milliseconds timeout{std::chrono::minutes(1)};
  std::function<bool()> interrupt_requested = {};
};

/// The folder in which this rank finds the files of `config`. All ranks must have the same name,
/// send and send_max_gb; the path may differ. A rank alone only looks for its files. Collective.
///
/// Errors. The same on all ranks: that of data::find_dataset or of the fetch if nobody has the
/// data; CallMismatch naming the rank whose copy differs; InvalidArgument naming a rank without a
/// copy that may not be sent one. On one rank, which must then end the group: System for a disk
/// that is full, CorruptData for damaged files. Timeout for a rank that makes no progress.
/// Interrupted.
DatasetFiles share_dataset(comm::Group group, const job::DataConfig& config,
                           const SharedDataOptions& options, progress::Observer& observer);

struct Delivery {
  std::string dataset;
  std::vector<SentFile> files;
  std::vector<Content> contents;
  std::filesystem::path target;  ///< in the receiver's cache; empty where nothing is received
  std::string receiver;          ///< for messages: "rank 1 on pc2"
};

/// The form in which `copy` is sent, once all of its contents are known. The dataset names its
/// files, never a text from the network. Error(CorruptData) if it is no copy of that dataset.
Delivery delivery_of(const Copy& copy, const std::string& dataset, const Cache* cache,
                     std::string receiver);

/// Whether the cache holds the whole data set, undamaged.
bool in_cache(const Delivery& delivery, progress::Meter& meter);

/// `receive` fills an empty folder with the files, through to the disk; they are checked and moved
/// into the cache: complete, or not there at all. Errors: System for a disk that is full,
/// CorruptData for files with a wrong checksum, and those of `receive`.
void keep_delivery(const Delivery& delivery, progress::Meter& meter,
                   const std::function<void(const std::filesystem::path&)>& receive);

/// The reason why a receiver is not sent its missing files; nothing if it is. `bytes`: their size.
std::optional<std::string> forbidden(const job::DataConfig& config);
std::optional<std::string> too_large(const job::DataConfig& config, std::uint64_t bytes);
Error not_sent(const std::string& receiver, const std::string& why_not, const std::string& missing,
               std::optional<int> rank = std::nullopt);

/// "no data on … (why): … sends 29.5 MiB to be kept there".
std::string sending_note(const std::string& receivers, const std::string& missing,
                         const std::string& sender, std::uint64_t bytes);

/// "29.5 MiB", "1.2 GiB".
std::string size_text(std::uint64_t bytes);

// A copy of the data set for the ranks that have none, over the fabric, into the cache of their
// machines: private to shared_data.cpp.

struct SentData {
  const job::DataConfig& config;
  const std::vector<Copy>& copies;  ///< of all ranks: equal, and all contents known
  const DatasetFiles& found;        ///< this rank's copy, if it has one
};

/// The files of this rank: its own or, if it has none, those in its cache. These are from an
/// earlier job, or the reference rank has sent them. One rank of each cache receives them.
/// Collective. `options.what` is ignored. Errors: see share_dataset.
DatasetFiles send_data(comm::Group group, const SentData& data,
                       const progress::TogetherOptions& options, progress::Observer& observer);

}  // namespace bimetal::data
