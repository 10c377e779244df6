#pragma once
// A data set on its way into the cache of a machine that has none, whatever carries it there.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/data/cache.h"
#include "bimetal/data/content.h"
#include "bimetal/data/file_transfer.h"
#include "bimetal/data/meter.h"
#include "bimetal/train/data_copies.h"
#include "bimetal/train/job.h"

namespace bimetal::train {

struct Delivery {
  std::string dataset;
  std::vector<data::SentFile> files;
  std::vector<data::Content> contents;
  std::filesystem::path target;  ///< in the receiver's cache; empty where nothing is received
  std::string receiver;          ///< for messages: "rank 1 on pc2"
};

/// What `copy`, all of whose contents are known, is sent as: its files are named by the dataset,
/// never by what comes over the network. Error(CorruptData) if it is no copy of that dataset.
Delivery delivery_of(const Copy& copy, const std::string& dataset, const data::Cache* cache,
                     std::string receiver);

/// Whether the cache holds the whole data set, undamaged.
bool in_cache(const Delivery& delivery, data::Meter& meter);

/// `receive` fills an empty folder with the files, through to the disk; they are checked and moved
/// into the cache: complete, or not there at all. Errors: System for a disk that is full,
/// CorruptData for files that are not what they should be, and those of `receive`.
void keep_delivery(const Delivery& delivery, data::Meter& meter,
                   const std::function<void(const std::filesystem::path&)>& receive);

/// Why a receiver is not sent what it misses; nothing if it is. `bytes`: how much that is.
std::optional<std::string> forbidden(const DataConfig& config);
std::optional<std::string> too_large(const DataConfig& config, std::uint64_t bytes);
Error not_sent(const std::string& receiver, const std::string& why_not, const std::string& missing,
               std::optional<int> rank = std::nullopt);

/// "no data on … (why): … sends 29.5 MiB to be kept there".
std::string sending_note(const std::string& receivers, const std::string& missing,
                         const std::string& sender, std::uint64_t bytes);

/// "29.5 MiB", "1.2 GiB".
std::string size_text(std::uint64_t bytes);

}  // namespace bimetal::train
