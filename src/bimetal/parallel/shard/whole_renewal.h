#pragma once
// Sends updated parameters to all ranks, if they are whole there between steps, too.

#include <chrono>
#include <cstddef>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/parallel/exchange_span.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/shard/flat_plan.h"
#include "bimetal/parallel/shard/shard_copies.h"

namespace bimetal::parallel::shard {

/// Each flat tensor is gathered once this rank's part of it is updated, while the optimizer goes on
/// with the next: in their order, which is the same on every rank. Use from one thread.
class WholeRenewal {
 public:
  /// `renewed`: which flat tensors, and of how many pieces this rank's part of each consists. All
  /// others must outlive it.
  struct Flat {
    std::size_t index, pieces;
  };
  WholeRenewal(std::vector<Flat> renewed, const std::vector<FlatPlan>& plans,
               std::vector<FlatParameters>& flats, comm::Group group, ExchangeSpan& span,
               std::chrono::milliseconds timeout);

  /// One more piece of flat tensor `index` is updated; where that is_copied_to_bfloat16(), the copy
  /// has been written, too.
  void updated(std::size_t index);
  /// All are: sends what is left, and waits. Collective, with or without the former. Rethrows the
  /// fabric's errors.
  void complete();

 private:
  void expect_anew();
  void send_next(bool copied);
  void begin_copied();

  std::vector<Flat> renewed_;
  const std::vector<FlatPlan>& plans_;
  std::vector<FlatParameters>& flats_;
  comm::Group group_;
  ExchangeSpan& span_;
  std::chrono::milliseconds timeout_;
  std::vector<std::size_t> left_;    ///< pieces to be updated, by flat tensor
  std::vector<Exchange> exchanges_;  ///< of the first of renewed_
  std::size_t begun_ = 0;            ///< the first so many of these
};

}  // namespace bimetal::parallel::shard
