#include "bimetal/parallel/pipeline/wait_for_peer.h"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/comm/group.h"

namespace bimetal::parallel::pipeline {
namespace {

/// Messages with it are this file's alone: no step comes so far.
constexpr std::uint64_t kNoteTag = ~std::uint64_t{0};
// A note that has been sent arrived long ago: it need only be taken.
constexpr std::chrono::milliseconds kToTakeNote{200};

/// A step, and a rank of the pipeline that is waited for in it.
using Note = std::vector<std::int64_t>;

/// Nobody waits until it is taken: the buffer lives as long as it must.
comm::Work posted(comm::Work work, std::shared_ptr<const Note> note) {
  work.on_done([note = std::move(note)](std::exception_ptr) {});
  return work;
}

void tell_whom(const Awaited& awaited) {
  auto group = awaited.mesh.pipeline();
  const auto note = std::make_shared<const Note>(Note{awaited.step, awaited.peer});
  for (int other = 0; other < group.size(); ++other) {
    if (other == group.rank()) continue;
    posted(
        group.send(comm::buffer(std::span(*note)), other, kNoteTag, Deadline::after(comm::kPosted)),
        note);
  }
}

/// The rank that `other` has said it waits for in this step. Earlier notes were of waits that have
/// ended.
std::optional<int> told_by(comm::Group group, int other, std::int64_t step) {
  std::optional<int> peer;
  for (;;) {
    const auto note = std::make_shared<Note>(2);
    const auto work = posted(
        group.recv(comm::buffer(std::span(*note)), other, kNoteTag, Deadline::after(comm::kPosted)),
        note);
    if (!work.wait_until(Deadline::after(kToTakeNote)) || work.error()) return peer;
    // A stage may have begun with the next step.
    const bool now = std::abs((*note)[0] - step) <= 1;
    const auto told = static_cast<int>((*note)[1]);
    if (now && told >= 0 && told < group.size()) peer = told;
  }
}

/// Follows the chain of waits from `peer` on to a rank that waits for nobody. Returns `peer` if
/// they wait in a circle.
int last_of_chain(const Awaited& awaited) {
  const auto& group = awaited.mesh.pipeline();
  std::set<int> seen = {group.rank()};
  for (int last = awaited.peer;;) {
    if (!seen.insert(last).second) return awaited.peer;
    const auto next = told_by(group, last, awaited.step);
    if (!next) return last;
    last = *next;
  }
}

}  // namespace

void wait_for_peer(const Awaited& awaited, const Patience& patience, const comm::Work& work,
                   Deadline deadline, const std::function<std::string()>& late) {
  if (work.wait_until(Deadline::after(deadline.remaining() / 2))) return;
  tell_whom(awaited);
  if (work.wait_until(deadline)) return;
  const int blamed = last_of_chain(awaited);
  const auto& mesh = awaited.mesh;
  const auto through = blamed == awaited.peer
                           ? std::string()
                           : fmt::format("; that one waits for {}", mesh.name_of_peer(blamed));
  throw Error(ErrorCode::Timeout,
              fmt::format("{} within {} s{}: is that stage stuck, or far slower? {} sets how long "
                          "to wait",
                          late(), std::chrono::duration<double>(patience.timeout).count(), through,
                          patience.set_by),
              mesh.rank_of_peer(blamed));
}

}  // namespace bimetal::parallel::pipeline
