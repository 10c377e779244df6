// Targets of what the processes of a job say to each other beside tensors: servers and workers,
// machines with and without the data, a launcher and its agents; and of Slurm's lists.

#include <algorithm>
#include <string>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/data/transfer/data_copies.h"
#include "bimetal/launch/agent/agent_message.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/parallel/server/events.h"
#include "bimetal/parallel/server/link/message.h"
#include "fuzz/targets.h"

namespace bimetal::fuzz {
namespace {

template <ErrorCode code = ErrorCode::CorruptData, typename Action>
void read_or_refused(Action action) {
  try {
    action();
  } catch (const Error& error) {
    promise(error.code() == code);
  }
}

std::string_view as_text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void server_message(Bytes bytes) {
  using namespace parallel::server;
  const auto comes_back = [&](const Body& again) { promise(std::ranges::equal(again, bytes)); };
  read_or_refused([&] { comes_back(encode(decode_join(bytes))); });
  read_or_refused([&] { comes_back(encode(decode_welcome(bytes))); });
  read_or_refused([&] { decode_refused(bytes); });
  read_or_refused([&] { comes_back(encode(decode_done(bytes))); });
  read_or_refused([&] {
    const auto lease = decode_lease(bytes);
    promise(lease.count >= 1 && lease.denominator >= 1);
    comes_back(encode(lease));
  });
  read_or_refused([&] {
    const auto apply = decode_apply(bytes);
    promise(apply.part > 0 && apply.part <= 1);
    comes_back(encode(apply));
  });
  read_or_refused([&] {
    const auto said = decode_said(bytes);
    promise(std::ranges::all_of(said.lines, [](const auto& l) { return l.text.size() <= 1000; }));
    comes_back(encode(said));
  });
}

void step_record(Bytes bytes) {
  using namespace parallel::server;
  read_or_refused([&] {
    const auto step = decode_step_record(bytes);
    promise(encode(step).size() <= bytes.size());
    promise(encode(decode_step_record(encode(step))) == encode(step));
  });
}

void data_copy(Bytes bytes) {
  read_or_refused([&] {
    const comm::Bytes whole(bytes.begin(), bytes.end());
    promise(data::encode_copy(data::decode_copy(whole)).size() <= whole.size());
  });
}

void agent_message(Bytes bytes) {
  using namespace launch;
  const auto text = as_text(bytes);
  read_or_refused([&] { decode_hello(text); });
  read_or_refused([&] { decode_job(text); });
  read_or_refused([&] { decode_end(text); });
  read_or_refused([&] { decode_error(text); });
  read_or_refused([&] { decode_number(text); });
  read_or_refused([&] {
    MessageReader reader;
    reader.feed(text.substr(0, text.size() / 2));
    reader.next();
    reader.feed(text.substr(text.size() / 2));
    while (const auto message = reader.next()) promise(message->text.size() <= text.size());
  });
}

void slurm_list(Bytes bytes) {
  using namespace launch;
  read_or_refused<ErrorCode::InvalidArgument>([&] {
    for (const auto& node : expand_node_list(as_text(bytes))) promise(!node.empty());
  });
  read_or_refused<ErrorCode::InvalidArgument>([&] {
    for (const int tasks : expand_tasks_per_node(as_text(bytes))) promise(tasks > 0);
  });
}

}  // namespace bimetal::fuzz
