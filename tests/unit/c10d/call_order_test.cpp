#include "bimetal/c10d/call_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "bimetal/c10d/callback_threads.h"

namespace bimetal::testing {
namespace {

using c10d::CallbackThreads;
using c10d::CallOrder;
using c10d::ReleaseVote;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

/// One rank's order, and the names of the calls that have begun in it.
class Rank {
 public:
  explicit Rank(c10::intrusive_ptr<::c10d::Store> store = c10::make_intrusive<::c10d::HashStore>(),
                int size = 2)
      : order(std::make_unique<ReleaseVote>(std::move(store), size),
              [this](const Error& error) { timeout = error.what(); }) {}

  void call(const std::string& name, Deadline deadline = Deadline::after(20s)) {
    order.make({.begin =
                    [this, name] {
                      std::lock_guard lock(mutex);
                      begun.push_back(name);
                    },
                .fail = [this](const std::exception_ptr&) { ++failed; },
                .deadline = deadline});
  }

  void call_inside(const CallOrder::SectionPtr& section, const std::string& name) {
    const CallOrder::Inside inside(section);
    call(name);
  }

  std::vector<std::string> calls() {
    std::lock_guard lock(mutex);
    return begun;
  }

  std::mutex mutex;
  std::vector<std::string> begun;
  std::atomic<int> failed{0};
  std::string timeout;
  CallOrder order;
};

bool soon(const std::function<bool()>& holds) {
  const auto deadline = Deadline::after(20s);
  while (!holds() && !deadline.expired()) std::this_thread::sleep_for(1ms);
  return holds();
}

TEST(CallOrder, CallbacksCallsComeBeforeWhatWasCalledAfterwards) {
  Rank rank;
  rank.call("a");
  const auto of_a = rank.order.open();
  rank.call("b");
  const auto of_b = rank.order.open();
  rank.call("c");
  EXPECT_THAT(rank.calls(), ElementsAre("a"));
  rank.call_inside(of_b, "b1");
  rank.call_inside(of_a, "a1");
  CallOrder::SectionPtr of_a1;
  {
    const CallOrder::Inside inside(of_a);
    of_a1 = rank.order.open();
  }
  rank.call_inside(of_a, "a2");
  rank.call_inside(of_a1, "a1'");
  EXPECT_THAT(rank.calls(), ElementsAre("a", "a1", "a1'"));
  rank.order.close(of_a1);
  rank.order.close(of_b);
  EXPECT_THAT(rank.calls(), ElementsAre("a", "a1", "a1'", "a2"));
  rank.order.close(of_a);
  EXPECT_THAT(rank.calls(), ElementsAre("a", "a1", "a1'", "a2", "b", "b1", "c"));
}

TEST(CallOrder, RanksThatAreAllBlockedGoOnAlike) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  Rank first(store);
  Rank second(store);
  std::vector<CallOrder::SectionPtr> sections;
  for (Rank* rank : {&first, &second}) {
    rank->call("a");
    sections.push_back(rank->order.open());
    rank->call("b");
  }
  for (Rank* rank : {&first, &second}) {
    ASSERT_TRUE(soon([&] { return rank->calls().size() == 2; }));
    EXPECT_THAT(rank->calls(), ElementsAre("a", "b"));
  }
  // Later ones still come behind the callbacks.
  first.call("c");
  first.call_inside(sections[0], "a1");
  second.call_inside(sections[1], "a1");
  second.call("c");
  first.order.close(sections[0]);
  second.order.close(sections[1]);
  for (Rank* rank : {&first, &second}) {
    EXPECT_TRUE(soon([&] { return rank->calls().size() == 4; }));
  }
  EXPECT_THAT(first.calls(), ElementsAre("a", "b", "a1", "c"));
  EXPECT_THAT(second.calls(), ElementsAre("a", "b", "a1", "c"));
}

TEST(CallOrder, OneSlowRankKeepsTheOrder) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  Rank slow(store);
  Rank quick(store);
  slow.call("a");
  quick.call("a");
  const auto of_slow = slow.order.open();
  const auto of_quick = quick.order.open();
  slow.call("b");
  quick.call_inside(of_quick, "a1");
  quick.order.close(of_quick);
  quick.call("b");
  std::this_thread::sleep_for(2 * CallOrder::kPatience);  // it votes, alone
  EXPECT_THAT(slow.calls(), ElementsAre("a"));
  slow.call_inside(of_slow, "a1");
  slow.order.close(of_slow);
  ASSERT_TRUE(soon([&] { return slow.calls().size() == 3; }));
  EXPECT_THAT(slow.calls(), ElementsAre("a", "a1", "b"));
}

TEST(CallOrder, ACallIsHeldUntilItHasBegun) {
  Rank rank;
  const auto section = rank.order.open();
  std::atomic<bool> begun{false};
  rank.order.make({.begin =
                       [&] {
                         std::this_thread::sleep_for(50ms);
                         begun = true;
                       },
                   .fail = [](const std::exception_ptr&) {},
                   .deadline = Deadline::after(20s)});
  rank.order.give_up();
  EXPECT_TRUE(rank.order.wait_until_none_is_held(Deadline::after(20s)));
  EXPECT_TRUE(begun);
}

TEST(CallbackThreads, AreAsManyAsBlock) {
  CallbackThreads threads;
  std::promise<void> open;
  const auto gate = open.get_future().share();
  std::atomic<int> through{0};
  for (int task = 0; task < 20; ++task) {
    threads.run([&, gate] {
      gate.wait();
      ++through;
    });
  }
  std::promise<bool> last;
  threads.run([&] { last.set_value(!threads.wait_idle(Deadline::after(1ms))); });
  EXPECT_TRUE(last.get_future().get());
  EXPECT_FALSE(threads.wait_idle(Deadline::after(1ms)));
  open.set_value();
  EXPECT_TRUE(threads.wait_idle(Deadline::after(20s)));
  EXPECT_EQ(through, 20);
}

}  // namespace
}  // namespace bimetal::testing
