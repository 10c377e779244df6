#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "bimetal/base/error.h"
#include "bimetal/base/json.h"
#include "bimetal/base/wire.h"
#include "bimetal/checkpoint/safetensors.h"

namespace bimetal::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr auto kMetadata = "__metadata__";
constexpr std::size_t kMaxDimensions = 64;  // libtorch's own limit in most of its operations

struct NamedType {
  std::string_view name;
  torch::Dtype dtype;
};
constexpr std::array<NamedType, 10> kTypes{{{"F64", torch::kFloat64},
                                            {"F32", torch::kFloat32},
                                            {"F16", torch::kFloat16},
                                            {"BF16", torch::kBFloat16},
                                            {"I64", torch::kInt64},
                                            {"I32", torch::kInt32},
                                            {"I16", torch::kInt16},
                                            {"I8", torch::kInt8},
                                            {"U8", torch::kUInt8},
                                            {"BOOL", torch::kBool}}};

/// A fault. The caller knows which file and tensor it is in.
struct Flaw {
  std::string text;
};

std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
  if (b != 0 && a > std::numeric_limits<std::int64_t>::max() / b) throw Flaw{"its shape overflows"};
  return a * b;
}

torch::Dtype parse_dtype(const Json& value) {
  if (!value.is_string()) throw Flaw{"its dtype is no string"};
  const auto name = value.get<std::string>();
  const auto dtype = named_dtype(name);
  if (!dtype) throw Flaw{fmt::format("dtype '{}' is unknown", name)};
  return *dtype;
}

std::uint64_t parse_whole(const Json& value, std::string_view what) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMax) {
    throw Flaw{fmt::format("its {} hold something other than a size", what)};
  }
  return value.get<std::uint64_t>();
}

std::vector<std::int64_t> parse_shape(const Json& value) {
  if (!value.is_array() || value.size() > kMaxDimensions) throw Flaw{"its shape is no shape"};
  std::vector<std::int64_t> shape;
  for (const Json& size : value) {
    shape.push_back(static_cast<std::int64_t>(parse_whole(size, "dimensions")));
  }
  return shape;
}

/// Sizes of 0 do not excuse an overflow by the others: strides are computed from them all the same.
std::uint64_t bytes_of(const TensorEntry& entry) {
  std::uint64_t bytes = c10::elementSize(entry.dtype);
  bool empty = false;
  for (const std::int64_t size : entry.shape) {
    empty = empty || size == 0;
    bytes = multiply(bytes, static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)));
  }
  return empty ? 0 : bytes;
}

TensorEntry parse_entry(const std::string& name, const Json& value) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    throw Flaw{"its entry is not exactly dtype, shape and data_offsets"};
  }
  TensorEntry entry{name, parse_dtype(value["dtype"]), parse_shape(value["shape"])};
  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) throw Flaw{"its data_offsets are no pair"};
  entry.begin = parse_whole(offsets[0], "data_offsets");
  entry.end = parse_whole(offsets[1], "data_offsets");
  if (entry.begin > entry.end || entry.end - entry.begin != bytes_of(entry)) {
    throw Flaw{"its data_offsets do not fit its shape and dtype"};
  }
  return entry;
}

void require_no_holes(const std::vector<TensorEntry>& entries, std::uint64_t data_size,
                      const std::string& file) {
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != covered) {
      refuse_safetensors(file, fmt::format("tensor '{}' begins at byte {} where {} was expected",
                                           entry.name, entry.begin, covered));
    }
    covered = entry.end;
  }
  if (covered != data_size) {
    refuse_safetensors(
        file, fmt::format("it holds {} bytes of data, its header tells of {}", data_size, covered));
  }
}

}  // namespace

void refuse_safetensors(const std::string& origin, const std::string& flaw) {
  throw Error(ErrorCode::CorruptData,
              fmt::format("{} is damaged or no safetensors file: {}", origin, flaw));
}

std::vector<TensorEntry> parse_header(std::string_view json, std::uint64_t data_size,
                                      const std::string& file) {
  const Json header = parse_json<Json>(json);
  if (!header.is_object()) refuse_safetensors(file, "its header is no JSON object");
  std::vector<TensorEntry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) continue;
    try {
      entries.push_back(parse_entry(name, value));
    } catch (const Flaw& flaw) {
      refuse_safetensors(file, fmt::format("tensor '{}': {}", name, flaw.text));
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  require_no_holes(entries, data_size, file);
  return entries;
}

std::string header_text(const std::vector<TensorEntry>& entries) {
  Json header;
  header[kMetadata] = {{"format", "pt"}};
  for (const TensorEntry& entry : entries) {
    if (entry.name == kMetadata) {
      throw Error(ErrorCode::InvalidArgument,
                  "no tensor in a safetensors file may be named __metadata__");
    }
    header[entry.name] = {{"dtype", format_name(entry.dtype)},
                          {"shape", entry.shape},
                          {"data_offsets", {entry.begin, entry.end}}};
  }
  try {
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return text;
  } catch (const nlohmann::json::type_error&) {
    throw Error(ErrorCode::InvalidArgument, "a tensor's name is no valid UTF-8");
  }
}

SafetensorsHeader read_header(std::uint64_t size,
                              const std::function<void(std::span<std::byte>)>& read,
                              const std::string& file) {
  if (size < kLengthBytes) refuse_safetensors(file, "it ends early");
  std::array<std::byte, kLengthBytes> length_field;
  read(length_field);
  const std::uint64_t length = WireReader(length_field).u64();
  const std::uint64_t left = size - kLengthBytes;
  if (length > std::min(left, kMaxHeaderBytes)) {
    refuse_safetensors(file, fmt::format("its header cannot be {} bytes long", length));
  }
  std::string text(length, ' ');
  read(std::as_writable_bytes(std::span(text)));
  return {parse_header(text, left - length, file), kLengthBytes + length};
}

void require_values(const TensorEntry& entry, std::span<const std::byte> bytes,
                    const std::string& file) {
  if (entry.dtype != torch::kBool ||
      std::ranges::all_of(bytes, [](std::byte b) { return b <= std::byte{1}; })) {
    return;
  }
  refuse_safetensors(file,
                     fmt::format("tensor '{}' holds values that are no booleans", entry.name));
}

std::string_view format_name(torch::Dtype dtype) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const NamedType& type) { return type.dtype == dtype; });
  return found == kTypes.end() ? std::string_view() : found->name;
}

std::optional<torch::Dtype> named_dtype(std::string_view name) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const NamedType& type) { return type.name == name; });
  if (found == kTypes.end()) return std::nullopt;
  return found->dtype;
}

}  // namespace bimetal::checkpoint
