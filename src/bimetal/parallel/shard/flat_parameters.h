#pragma once
// Parameters that are one after the other in one flat tensor, whose memory can be freed while they
// are not used.
//
// Sizes of shards in proportion to each rank's free memory.

#include <torch/csrc/api/include/torch/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"
#include "bimetal/optim/offload/state_file.h"
#include "bimetal/parallel/shard/flat_plan.h"

namespace bimetal::parallel::shard {

/// Takes the memory from below a tensor, and from whatever shares it: hollow tensors have shapes
/// and no values.
void hollow_out(const torch::Tensor& tensor);
/// The same, so that looking at the values is an error instead of the end of the process, where
/// libtorch has that (2.13). `unit`: whose it is, for the error's text; empty: not known.
void close_off(const torch::Tensor& tensor, const std::string& unit = {});
/// The way back from both: memory, with any values.
void give_memory(const torch::Tensor& tensor);
/// Whether it has elements and no memory for them.
bool is_hollow(const torch::Tensor& tensor);

/// The parameters stay the leaves that they were and become views of the flat tensor. Letting its
/// memory go swaps the memory below them, so that tensors saved by autograd find the values again
/// once they are back. Meanwhile nobody may read them. If the plan gathers them in another type
/// than ranks keep, they are leaves of that type, and the rank's own part is separate from the
/// start. Use from one thread.
class FlatParameters {
 public:
  /// `parameters`: those of the plan's slots, in their order, on one device. Their values stay,
  /// unless they are `hollow`: then there is no memory yet, and set_apart() gives undefined values.
  /// Values are in `memory`, if it is given, in the type of the whole.
  FlatParameters(const FlatPlan& plan, const std::vector<torch::Tensor>& parameters, int rank,
                 bool hollow = false, torch::Tensor memory = {});

  /// The part that the rank keeps gets memory of its own, so that the whole may go: the device's,
  /// the host's, or a file's. While there is the whole, or before it has ever been.
  void set_apart();
  void set_apart_on_host();
  void set_apart_in(optim::FileTensor memory);

  /// Copies the rank's own part from the whole, which must be there. Does nothing if the whole has
  /// another type.
  void take_own_from_whole();

  const torch::Tensor& whole() const noexcept { return whole_; }
  /// The part that this rank keeps; a view of the whole unless it is separate.
  const torch::Tensor& own() const noexcept { return own_; }
  /// The place of this rank's part in the whole, while there is memory.
  torch::Tensor own_in_whole() const;
  /// Whether the whole has it in bfloat16, both in the host's memory: for a merged update to write.
  bool is_copied_to_bfloat16() const;

  /// Whether the memory is a file's; the calls below tell that this rank's part will be read, must
  /// be there now, or has been used. They do nothing if it is no file's.
  bool own_on_disk() const noexcept { return in_file_.tensor().defined(); }
  void bring_own() noexcept { in_file_.bring(); }
  void wait_for_own() noexcept { in_file_.arrive(); }
  void let_go_of_own() const noexcept { in_file_.let_go(); }

  /// Sets whether the whole has the type of this rank's part, instead of the plan's type for
  /// gathering: for passes without a backward. It does nothing while there is memory.
  void set_wide(bool wide);
  /// The parameters are views of `flat`, as many elements of any type, until they are shown
  /// another, or the whole again.
  void show(const torch::Tensor& flat);

  bool held() const noexcept { return held_; }
  /// Memory whose contents are anything, where there is none.
  void take_memory();
  void drop_memory();
  /// As take_memory(), for values that are on their way: the tensor to put them into. Looking at
  /// the parameters stays an error until memory_has_come(), unless they were there before.
  torch::Tensor take_memory_to_come();
  void memory_has_come();

  /// While the whole is there, and has its values: this rank's part becomes a part of its memory,
  /// and gets memory of its own again before that is freed. Does nothing if the part has another
  /// type, is on another device or in a file.
  void keep_in_whole();

 private:
  void keep_by_itself();

  FlatPlan plan_;
  std::vector<torch::Tensor> parameters_;
  std::int64_t begin_;     ///< of the rank's part
  torch::Tensor to_come_;  ///< the memory of `whole_` meanwhile
  torch::Tensor whole_, own_;
  optim::FileTensor in_file_;
  bool held_ = true;
  bool kept_in_whole_ = false;
};

// The place of a rank's part of the parameters while whole ones are gathered and freed (level 3).

enum class Kept {
  OnDevice,
  OnHost,
  OnDisk,  ///< in a file; the system holds the part used last in memory
};

/// Gives the rank's part of each flat tensor memory of its own. `folder`: that of the file, which
/// is returned if there is one. Errors: StateFile's.
std::shared_ptr<const optim::StateFile> keep_apart(std::vector<FlatParameters>& flats, Kept kept,
                                                   const std::filesystem::path& folder);

/// Free bytes of each rank's device, or ones if any rank cannot tell its own: equal parts are no
/// worse a guess than any other then. With `copies` there is room for each rank's shard and the one
/// that it copies (shard_copies.h). `device`: this rank's. Collective. Errors: the fabric's.
std::vector<double> weights_by_memory(comm::Group group, const torch::Device& device,
                                      Deadline deadline, bool copies = false);

}  // namespace bimetal::parallel::shard
