#include "bimetal/base/files.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/capi/boundary.h"
#include "bimetal/rendezvous/member_record.h"

using namespace bimetal;
namespace fs = std::filesystem;

struct bimetal_folder {
  std::unique_ptr<TemporaryPath> path;
  std::uint64_t owner = rendezvous::own_process_id();
};

namespace {

void sync_at(const char* path) {
  if (fs::is_directory(path)) return sync_directory(path);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb+"), std::fclose);
  if (!file) throw system_error(std::string("cannot write ") + path, errno);
  sync_file(file.get(), path);
}

}  // namespace

extern "C" {

std::int32_t bimetal_folder_new(const char* target, bimetal_folder** folder) {
  return capi::guarded([&] {
    capi::require(target, "the folder's target");
    *folder =
        new bimetal_folder{std::make_unique<TemporaryPath>(target, TemporaryPath::Kind::folder)};
  });
}

std::int32_t bimetal_folder_path(const bimetal_folder* folder, const char** path) {
  return capi::guarded([&] { *path = capi::keep_text(folder->path->path().string()).c_str(); });
}

std::int32_t bimetal_folder_move(bimetal_folder* folder) {
  return capi::guarded([&] { folder->path->move_into_place(); });
}

void bimetal_folder_free(bimetal_folder* folder) {
  if (folder == nullptr) return;
  // A process that has been forked off (a DataLoader's worker) leaves its parent's alone.
  if (rendezvous::own_process_id() != folder->owner) static_cast<void>(folder->path.release());
  delete folder;
}

std::int32_t bimetal_remove_leftovers(const char* folder, const char* name) {
  return capi::guarded([&] {
    capi::require(folder, "the folder");
    const auto of = name == nullptr ? Leftovers::of_all : Leftovers::of_numbering;
    remove_leftovers(folder, name == nullptr ? "" : name, of);
  });
}

std::int32_t bimetal_sync_path(const char* path) {
  return capi::guarded([&] {
    capi::require(path, "the path");
    sync_at(path);
  });
}

std::int32_t bimetal_write_file(const char* path, const void* contents, std::int64_t bytes) {
  return capi::guarded([&] {
    capi::require(path, "the path");
    write_file_atomically(path, std::string_view(static_cast<const char*>(contents),
                                                 static_cast<std::size_t>(bytes)));
  });
}

}  // extern "C"
