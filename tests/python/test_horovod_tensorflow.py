"""Horovod's API for TensorFlow, with the real one: operations eagerly and in graphs, and their gradients.

Exits with 77, which CTest counts as skipped, where TensorFlow is not installed (scripts/install_tensorflow.sh).
"""

import os
import unittest

import ranks

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ranks.skip_all_without("tensorflow", how="make test-horovod installs it and runs this test")

import numpy  # noqa: E402
import tensorflow as tf  # noqa: E402

import bimetal.horovod.tensorflow as hvd  # noqa: E402

TYPES = [tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64]


def values(rank, dtype=tf.float32, shape=(6, 3)):
    """Small whole numbers: sums are exact in every type."""
    count = int(numpy.prod(shape))
    return tf.cast(tf.reshape((tf.range(count) * 7 + rank * 3) % 3 + 1, shape), dtype)


def everyone(dtype=tf.float32, shape=(6, 3)):
    return tf.stack([values(rank, dtype, shape) for rank in range(hvd.size())])


def same(got, expected):
    got, expected = tf.convert_to_tensor(got), tf.convert_to_tensor(expected)
    assert got.dtype == expected.dtype and bool(tf.reduce_all(got == expected)) and got.shape == expected.shape, \
        f"{got} is not {expected}"


def both_ways(function):
    """Eagerly, and twice inside tf.function, whose tracing must not count."""
    graph = tf.function(function)
    return [function, graph, graph]


def check_reductions():
    for dtype in TYPES:
        stack = tf.cast(everyone(dtype), tf.float64)
        for op, of in ((hvd.Sum, tf.reduce_sum), (hvd.Min, tf.reduce_min), (hvd.Max, tf.reduce_max),
                       (hvd.Product, tf.reduce_prod)):
            ways = both_ways(lambda x, op=op: hvd.allreduce(x, op=op))
            for call in ways if op == hvd.Sum else ways[:1]:
                same(call(values(hvd.rank(), dtype)), tf.cast(of(stack, 0), dtype))
    total = tf.reduce_sum(everyone(), 0)
    for call in both_ways(lambda x: hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16, name="half")):
        same(call(values(hvd.rank())), total)
    for call in both_ways(lambda x: hvd.grouped_allreduce([x, 2.0 * x], prescale_factor=0.5)):
        one, two = call(values(hvd.rank()))
        numpy.testing.assert_allclose(one, total / hvd.size() / 2, rtol=1e-6)
        numpy.testing.assert_allclose(two, total / hvd.size(), rtol=1e-6)
    same(hvd.allreduce(tf.Variable(3.0), average=False), 3.0 * hvd.size())
    for rows in (2 * hvd.size(), 5):
        shares = [rows // hvd.size() + (r < rows % hvd.size()) for r in range(hvd.size())]
        for call in both_ways(lambda x: hvd.reducescatter(x, op=hvd.Sum)):
            same(call(values(hvd.rank(), shape=(rows, 2))),
                 tf.split(tf.reduce_sum(everyone(shape=(rows, 2)), 0), shares)[hvd.rank()])
    for call in both_ways(lambda x: hvd.grouped_reducescatter([x, 2 * x], op=hvd.Sum, name="parts")):
        one, two = call(values(hvd.rank(), shape=(hvd.size(), 2)))
        same(one, tf.reduce_sum(everyone(shape=(hvd.size(), 2)), 0)[hvd.rank():hvd.rank() + 1])
        same(two, 2 * one)


def check_movement():
    rank, size = hvd.rank(), hvd.size()
    for call in both_ways(lambda x: hvd.grouped_allgather([x, x[:1]], name="rows")):
        many, few = call(tf.repeat(tf.constant([[rank]]), rank + 1, 0))
        same(many, tf.concat([tf.repeat(tf.constant([[r]]), r + 1, 0) for r in range(size)], 0))
        same(few, tf.reshape(tf.range(size), (size, 1)))
    for call in both_ways(lambda x: (hvd.local_rank_op() + x, hvd.local_size_op() + x)):
        local_rank, local_size = call(0)
        same(local_rank, hvd.local_rank())
        same(local_size, hvd.local_size())
    for dtype in (tf.float32, tf.bfloat16, tf.int64, tf.bool):
        for call in both_ways(hvd.allgather):
            same(call(values(rank, dtype, (2 * rank, 4))),
                 tf.concat([values(r, dtype, (2 * r, 4)) for r in range(size)], 0))
        for call in both_ways(lambda x: hvd.broadcast(x, 1)):
            same(call(values(rank, dtype)), values(1, dtype))
        sent = tf.concat([values(10 * rank + to, dtype, (rank + to, 3)) for to in range(size)], 0)
        for call in both_ways(lambda x: hvd.alltoall(x, splits=[rank + to for to in range(size)])):
            got, received = call(sent)
            same(got, tf.concat([values(10 * r + rank, dtype, (r + rank, 3)) for r in range(size)], 0))
            assert received.numpy().tolist() == [r + rank for r in range(size)]
    for call in both_ways(hvd.alltoall):
        same(call(tf.fill([size, 2], rank)), tf.repeat(tf.range(size)[:, None], 2, 1))
    assert hvd.broadcast_object({"a": [rank, "b"]}, root_rank=1) == {"a": [1, "b"]}
    assert hvd.allgather_object(rank) == list(range(size))
    weights = [tf.Variable(values(rank)), tf.Variable(rank, dtype=tf.int64)]
    hvd.broadcast_variables(weights, root_rank=1)
    same(weights[0], values(1))
    same(weights[1], tf.constant(1, tf.int64))


def check_order_in_graphs():
    @tf.function
    def many(x):
        return [hvd.allreduce(x + float(k), op=hvd.Sum) if k % 2 else hvd.allgather(x[:1] + float(k)) for k in range(8)]
    for _ in range(3):
        for k, result in enumerate(many(values(hvd.rank()))):
            same(result, tf.reduce_sum(everyone() + float(k), 0) if k % 2 else everyone()[:, 0] + float(k))

    @tf.function
    def looped(x):
        for _ in tf.range(3):
            x = hvd.allreduce(x, op=hvd.Sum)
        return x
    same(looped(tf.ones(2)), tf.fill([2], float(hvd.size()) ** 3))


def check_gradients():
    rank, size = hvd.rank(), hvd.size()
    weights = [tf.cast(values(r), tf.float64) + r for r in range(size)]
    mean = sum(weights) / size

    def gradient(operation, weight):
        x = tf.Variable(tf.ones([6, 3], tf.float64))

        def of():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(operation(x) * weight)
            return tape.gradient(loss, x)
        return [of(), tf.function(of)()]
    for operation, weight, expected in (
            (hvd.allreduce, weights[rank], mean),
            (lambda x: hvd.allreduce(x, op=hvd.Sum), weights[rank], mean * size),
            (lambda x: hvd.broadcast(x, 1), weights[rank], mean if rank == 1 else mean * 0),
            (hvd.allgather, tf.concat(weights, 0), weights[rank]),
            (lambda x: hvd.alltoall(tf.tile(x, [size, 1])), tf.cast(rank + 1, tf.float64),
             tf.fill([6, 3], tf.cast(size * (size + 1) // 2, tf.float64))),
            (lambda x: hvd.reducescatter(tf.tile(x, [size, 1]), op=hvd.Sum), tf.cast(rank + 1, tf.float64),
             tf.fill([6, 3], tf.cast(size * size * (size + 1) // 2, tf.float64)))):  # times size, as in Horovod
        for got in gradient(operation, weight):
            numpy.testing.assert_allclose(got, expected, rtol=1e-12)


def check_sparse():
    rank, size = hvd.rank(), hvd.size()
    slices = tf.IndexedSlices(tf.ones([2, 3]) * (rank + 1.0), tf.constant([rank, 9]),
                              dense_shape=tf.constant([10, 3]))
    for call in both_ways(lambda: hvd.allreduce(slices)):
        got = call()
        assert isinstance(got, tf.IndexedSlices)
        assert got.indices.numpy().tolist() == [n for r in range(size) for n in (r, 9)]
        expected = numpy.zeros((10, 3))
        for r in range(size):
            expected[[r, 9]] += (r + 1) / size
        numpy.testing.assert_allclose(tf.convert_to_tensor(got), expected, rtol=1e-6)
    for dense in (False, True):
        table = tf.Variable(tf.ones([10, 3]))

        @tf.function
        def step(table=table, dense=dense):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, [rank, 9, 9]))
            return hvd.DistributedGradientTape(tape, sparse_as_dense=dense).gradient(loss, table)
        got = step()
        assert isinstance(got, tf.IndexedSlices) != dense
        expected = numpy.zeros((10, 3))
        expected[9], expected[:size] = 2, 1 / size
        numpy.testing.assert_allclose(tf.convert_to_tensor(got), expected, rtol=1e-6)


def check_errors():
    rank = hvd.rank()
    ranks.raises(Exception, lambda: hvd.allreduce(tf.ones(3 + rank), name="x"), "(3,)", "(4,)")
    ranks.raises(Exception, tf.function(lambda: hvd.allreduce(tf.ones(3 + rank), name="y")), "(3,)", "(4,)")
    ranks.raises(Exception, tf.function(lambda: hvd.allreduce(tf.ones(3), op=hvd.Adasum)), "Adasum is not there")
    ranks.raises(Exception, lambda: hvd.alltoall(tf.ones(3 * hvd.size() + 1)), "divide")
    ranks.raises(Exception, lambda: hvd.DistributedOptimizer(object()), "Keras 3")
    same(hvd.allreduce(tf.ones(2), op=hvd.Sum), tf.fill([2], float(hvd.size())))


def check_join():
    for _ in range(1 + 2 * hvd.rank()):
        hvd.allreduce(tf.ones(3), op=hvd.Sum)
    assert hvd.join() == hvd.size() - 1


def check_process_sets():
    rank, size = hvd.rank(), hvd.size()
    halves = [hvd.add_process_set(range(start, size, 2)) for start in range(2)]
    mine = halves[rank % 2]
    members = mine.ranks
    same(hvd.allreduce(values(rank), op=hvd.Sum, process_set=mine), sum(values(member) for member in members))
    same(hvd.broadcast(tf.constant([rank]), members[-1], process_set=mine), tf.constant([members[-1]]))
    same(hvd.allgather(tf.fill([1], rank), process_set=mine), tf.constant(members))
    weight = tf.Variable(1.0)
    for process_set, taking_part in ((mine, members), (halves[0], members if rank % 2 == 0 else [rank])):
        with tf.GradientTape() as tape:
            loss = weight * float(rank + 1)
        gradient = hvd.DistributedGradientTape(tape, process_set=process_set).gradient(loss, weight)
        same(gradient, tf.constant(sum(member + 1.0 for member in taking_part) / len(taking_part)))
    for half in halves:
        assert hvd.remove_process_set(half)


CHECKS = [check_process_sets, check_reductions, check_movement, check_order_in_graphs, check_gradients, check_sparse,
          check_errors, check_join]


def all_checks():
    hvd.init()
    for check in CHECKS:
        check()
        hvd.barrier()
        print(check.__name__, "passed", flush=True)
    return len(CHECKS)


class TensorFlow(unittest.TestCase):
    def test_operations_on_two_ranks(self):
        self.assertEqual(ranks.on_ranks(2, all_checks, backend=None), [len(CHECKS)] * 2)

    def test_operations_on_three_ranks(self):
        self.assertEqual(ranks.on_ranks(3, all_checks, backend=None), [len(CHECKS)] * 3)


if __name__ == "__main__":
    ranks.main(globals())
