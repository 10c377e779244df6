#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/base/input_file.h"
#include "bimetal/base/mapped_file.h"
#include "bimetal/base/to_error.h"

namespace bimetal {

MappedFile::MappedFile(const std::filesystem::path& path) {
  InputFile file(path);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw system_error("cannot read " + path.string(), error);
  read_.resize(static_cast<std::size_t>(size));
  read_.resize(file.read(read_));
  bytes_ = read_;
}

MappedFile::~MappedFile() = default;

}  // namespace bimetal
