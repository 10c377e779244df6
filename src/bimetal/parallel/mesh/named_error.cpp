#include "bimetal/parallel/mesh/named_error.h"

#include <fmt/format.h>

#include <string>

namespace bimetal::parallel {

Error named(const Error& error, const MeshShape& shape, int own) {
  std::string text = error.what();
  const auto says = [&, said = text](const std::string& place) {
    return said.find(place) != std::string::npos;
  };
  const int about = error.rank().value_or(own);
  if (about != own && about >= 0 && about < shape.ranks()) {
    const auto place = name_of(shape, about);
    if (!says(place)) text += fmt::format("; rank {} is {}", about, place);
  }
  const auto place = name_of(shape, own);
  if (!says(place)) text = fmt::format("{} (rank {}): {}", place, own, text);
  return {error.code(), text, error.rank()};
}

}  // namespace bimetal::parallel
