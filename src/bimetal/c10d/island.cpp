#include "bimetal/c10d/island.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/group/work_state.h"

namespace bimetal::c10d {
namespace {

using std::chrono::milliseconds;

milliseconds left_of(Deadline deadline) {
  return std::max(std::chrono::ceil<milliseconds>(deadline.remaining()), milliseconds(1));
}

comm::Failure failure_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return {error.code(), error.what(), error.rank()};
  } catch (const std::exception& error) {
    return {ErrorCode::Internal, error.what(), std::nullopt};
  }
}

}  // namespace

Island::Island(comm::Group members, BackendPtr vendor, comm::Group leaders,
               const torch::Device& device)
    : members_(std::move(members)),
      vendor_(std::move(vendor)),
      leaders_(std::move(leaders)),
      staging_(device),
      device_(device) {
  const bool together = members_ && members_.size() > 1;
  const bool first = !together || members_.rank() == 0;
  if (static_cast<bool>(vendor_) != together || leads() != first) {
    throw Error(ErrorCode::InvalidArgument,
                "an island of several ranks needs a vendor library, and its first rank alone is "
                "among the leaders");
  }
}

Island::~Island() = default;

comm::Work Island::all_reduce(torch::Tensor flat, comm::DType dtype, Deadline deadline) {
  auto state = std::make_shared<comm::Work::State>();
  executor_.push([this, flat = std::move(flat), dtype, deadline, state]() mutable {
    std::optional<comm::Failure> failure;
    try {
      sum(flat, dtype, deadline);
    } catch (...) {
      failure = failure_of(std::current_exception());
      give_up(failure->message);
    }
    flat = torch::Tensor();
    state->finish(std::move(failure));
  });
  return comm::Work(std::move(state));
}

void Island::sum(torch::Tensor& flat, comm::DType dtype, Deadline deadline) {
  if (!failure_.empty()) throw Error(ErrorCode::Aborted, failure_);
  const torch::NoGradGuard no_grad;
  if (vendor_) reduce_to_leader(flat, deadline);
  if (leads() && leaders_.size() > 1) exchange(flat, dtype, deadline);
  if (vendor_) spread_from_leader(flat, deadline);
}

/// The device waits for nobody: the fabric, which names who is lost or late, has seen all members
/// come before the vendor library, whose waiting occupies the device, is called.
void Island::reduce_to_leader(torch::Tensor& flat, Deadline deadline) {
  members_.barrier(deadline).wait();
  with_vendor("reduce", [&] {
    std::vector<at::Tensor> tensors{flat};
    ::c10d::ReduceOptions options;
    options.reduceOp = ::c10d::ReduceOp::SUM;
    options.rootRank = 0;
    options.timeout = left_of(deadline);
    vendor_->reduce(tensors, options)->wait(options.timeout);
  });
  staging_.mark_to_device().wait(deadline);
}

void Island::exchange(torch::Tensor& flat, comm::DType dtype, Deadline deadline) {
  const auto leaders_sum = [&](torch::Tensor& host) {
    const comm::Buffer buffer{host.data_ptr(), static_cast<std::size_t>(host.numel()), dtype};
    leaders_.all_reduce(buffer, comm::ReduceOp::sum, deadline).wait();
  };
  if (device_.is_cpu()) return leaders_sum(flat);
  const bool fits =
      host_.defined() && host_.scalar_type() == flat.scalar_type() && host_.numel() >= flat.numel();
  if (!fits) host_ = device::host_buffer(flat.numel(), flat.scalar_type(), device_);
  auto host = host_.narrow(0, 0, flat.numel());
  staging_.to_host(flat, host);
  staging_.mark_to_host().wait(deadline);
  leaders_sum(host);
  staging_.to_device(host, flat);
  staging_.mark_to_device().wait(deadline);
}

/// As before: members wait in the fabric until their leader has the result.
void Island::spread_from_leader(torch::Tensor& flat, Deadline deadline) {
  std::uint8_t here = 1;
  members_.broadcast({&here, 1, comm::DType::uint8}, 0, deadline).wait();
  with_vendor("broadcast", [&] {
    std::vector<at::Tensor> tensors{flat};
    ::c10d::BroadcastOptions options;
    options.rootRank = 0;
    options.timeout = left_of(deadline);
    vendor_->broadcast(tensors, options)->wait(options.timeout);
  });
  staging_.mark_to_device().wait(deadline);
}

template <typename Call>
void Island::with_vendor(const char* what, Call&& call) try {
  call();
} catch (const std::exception& error) {
  throw Error(ErrorCode::System,
              fmt::format("rank {} of its island: the vendor library's {} failed: {}",
                          members_.rank(), what, error.what()));
}

/// Frees whoever waits for this rank, in the fabric or in the vendor library.
void Island::give_up(const std::string& reason) {
  if (!failure_.empty()) return;
  failure_ = reason;
  if (members_) members_.abort(reason);
  if (leaders_) leaders_.abort(reason);
  if (!vendor_) return;
  try {
    vendor_->abort();
  } catch (const std::exception&) {
    // It has failed already; the first reason counts.
  }
}

}  // namespace bimetal::c10d
