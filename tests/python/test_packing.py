"""Which run goes to which device: list scheduling by earliest finish time."""

import unittest

from bimetal.pool.pool import Forecast, choose


class Packing(unittest.TestCase):
    def test_the_longest_goes_to_the_fastest(self):
        self.assertEqual(choose([10, 30, 20], [Forecast(1), Forecast(3), Forecast(2)]), [(1, 1), (2, 2), (0, 0)])

    def test_a_slow_device_gets_nothing_that_a_fast_one_finishes_earlier(self):
        fast, slow = Forecast(10, free_in=3), Forecast(1)
        self.assertEqual(choose([100], [fast, slow]), [])
        self.assertEqual(choose([3], [fast, slow]), [(0, 1)])

    def test_what_waits_for_the_fast_one_counts(self):
        # After the other three the fast one would have it done in 33.5 s, the slow one in 35; of 20 in 32 and 20.
        self.assertEqual(choose([100, 100, 100, 35], [Forecast(10), Forecast(1)]), [(0, 0)])
        self.assertEqual(choose([100, 100, 100, 20], [Forecast(10), Forecast(1)]), [(0, 0), (3, 1)])

    def test_equal_devices_are_all_used(self):
        chosen = choose([1] * 5, [Forecast(1)] * 3)
        self.assertEqual(sorted(device for _, device in chosen), [0, 1, 2])
        self.assertEqual([run for run, _ in chosen], [0, 1, 2])

    def test_overhead_makes_short_runs_worth_spreading(self):
        self.assertEqual(len(choose([1, 1], [Forecast(100, overhead=5), Forecast(10, overhead=5)])), 2)
        self.assertEqual(len(choose([1, 1], [Forecast(100), Forecast(10)])), 1)

    def test_nothing_to_do(self):
        self.assertEqual(choose([], [Forecast(1)]), [])
        self.assertEqual(choose([1], []), [])
        self.assertEqual(choose([1], [Forecast(1, free_in=2)]), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
