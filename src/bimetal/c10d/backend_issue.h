#pragma once
// How BimetalBackend begins a call. Private to its sources.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/c10d/backend.h"
#include "bimetal/c10d/backend_error.h"

namespace bimetal::c10d {

template <typename Body>
BimetalBackend::WorkPtr BimetalBackend::start(::c10d::OpType type, const char* title,
                                              Milliseconds timeout, std::vector<at::Tensor> outputs,
                                              Body&& body) {
  BackendWork::Description description{.rank = rank_,
                                       .type = type,
                                       .title = title,
                                       .sequence = sequence_,
                                       .outputs = std::move(outputs)};
  Issue issue{.tensors = {}, .calls = {}, .deadline = Deadline::after(timeout_or_default(timeout))};
  guarded([&] { body(issue); });
  return finish_start(std::move(description), std::move(issue));
}

/// The one tensor of a list: torch passes lists for devices per process that are long gone.
inline at::Tensor& only(std::vector<at::Tensor>& tensors) {
  if (tensors.size() == 1) return tensors.front();
  throw BackendError(
      Error(ErrorCode::InvalidArgument, "one tensor is needed where a list of several was given"));
}

inline bool alike(const std::vector<at::Tensor>& tensors) {
  return std::ranges::all_of(
      tensors, [&](const at::Tensor& t) { return t.numel() == tensors.front().numel(); });
}

/// Elements of the fabric in each of `parts`, which `joined` holds one after the other.
inline std::vector<std::size_t> counts_of(const std::vector<at::Tensor>& parts,
                                          const at::Tensor& joined) {
  const std::size_t per_value =
      joined.numel() > 0 ? buffer_of(joined).count / static_cast<std::size_t>(joined.numel()) : 1;
  std::vector<std::size_t> counts;
  for (const auto& part : parts) {
    counts.push_back(static_cast<std::size_t>(part.numel()) * per_value);
  }
  return counts;
}

}  // namespace bimetal::c10d
