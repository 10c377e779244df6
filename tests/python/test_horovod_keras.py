"""Horovod's API for Keras, with the real one: tape and fit() beside one process, callbacks, saved models, elastic.

Exits with 77, which CTest counts as skipped, where TensorFlow is not installed (scripts/install_tensorflow.sh).
"""

import os
import pathlib
import re
import sys
import tempfile
import unittest

import ranks

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ranks.skip_all_without("tensorflow", how="make test-horovod installs it and runs this test")

import keras  # noqa: E402
import numpy  # noqa: E402
import programs  # noqa: E402
import tensorflow as tf  # noqa: E402

import bimetal.horovod.tensorflow.keras as hvd  # noqa: E402
from bimetal.horovod.core import meeting  # noqa: E402


def samples(steps, ranks_, passes=1):
    """(steps, passes, ranks, 4, …): what each rank sees in each batch."""
    generator = numpy.random.default_rng(3)
    return (generator.normal(size=(steps, passes, ranks_, 4, 6)), generator.normal(size=(steps, passes, ranks_, 4, 2)))


def network(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(9, activation="tanh"), keras.layers.Dense(2)])


def difference(model, reference):
    return max(float(numpy.max(numpy.abs(a - b) / numpy.maximum(numpy.abs(b), 1e-3)))
               for a, b in zip(model.get_weights(), reference.get_weights(), strict=True))


def tape_is_exact():
    """A loop of one's own in tf.function, as one process over the joined batch."""
    inputs, targets = samples(6, hvd.size())
    reference, model = network(1), network(1 + hvd.rank())
    own = keras.optimizers.Adam(0.01)
    for x, y in zip(inputs, targets, strict=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((reference(x.reshape(-1, 6)) - y.reshape(-1, 2)) ** 2)
        own.apply_gradients(zip(tape.gradient(loss, reference.trainable_variables), reference.trainable_variables))
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    for x, y in zip(inputs, targets, strict=True):
        step(tf.constant(x[0, hvd.rank()]), tf.constant(y[0, hvd.rank()]))
    return difference(model, reference)


def fit_is_exact(passes, clip):
    """fit() with the callbacks, as one process over the joined batch."""
    rank, size = hvd.rank(), hvd.size()
    inputs, targets = samples(4, size, passes)
    reference, model = network(1), network(1 + rank)
    reference.compile(keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=clip), "mse")
    reference.fit(inputs.reshape(-1, 6), targets.reshape(-1, 2), batch_size=4 * size * passes, epochs=2, shuffle=False,
                  verbose=0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=clip),
                                         backward_passes_per_step=passes, average_aggregated_gradients=True)
    model.compile(optimizer, "mse")
    history = model.fit(inputs[:, :, rank].reshape(-1, 6), targets[:, :, rank].reshape(-1, 2), batch_size=4, epochs=2,
                        shuffle=False, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                                                             hvd.callbacks.MetricAverageCallback()])
    losses = hvd.allgather_object(history.history["loss"])
    assert all(one == losses[0] for one in losses), losses
    return difference(model, reference)


def exactness(ways_to_fit):
    keras.backend.set_floatx("float64")
    hvd.init()
    return [tape_is_exact(), *[fit_is_exact(passes, clip) for passes, clip in ways_to_fit]]


def learning_rates():
    hvd.init()
    model = network(1)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), "mse")
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(float(self.model.optimizer.learning_rate.numpy()))
    x, y = numpy.zeros((12, 6), "float32"), numpy.zeros((12, 2), "float32")
    history = model.fit(x, y, batch_size=4, epochs=5, verbose=0, callbacks=[
        hvd.callbacks.LearningRateWarmupCallback(0.1 * hvd.size(), warmup_epochs=2, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(0.1 * hvd.size(), lambda epoch: 0.1 ** (epoch - 2), start_epoch=3),
        Look()])
    return seen, history.history["lr"]


def older_script(folder):
    """The textbook form of Horovod's days, whose model gets its variables in its first batch."""
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    dataset = tf.data.Dataset.from_tensor_slices((tf.random.normal([64, 8, 8, 1]), tf.zeros([64], tf.int64)))
    model = tf.keras.Sequential([tf.keras.layers.Conv2D(4, [3, 3], activation="relu"), tf.keras.layers.Flatten(),
                                 tf.keras.layers.Dropout(0.25), tf.keras.layers.Dense(10, activation="softmax")])
    rate = 0.001 * hvd.size()
    optimizer = hvd.DistributedOptimizer(tf.optimizers.Adam(rate), backward_passes_per_step=1,
                                         average_aggregated_gradients=True)
    model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=optimizer, metrics=["accuracy"],
                  experimental_run_tf_function=False)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(),
                 hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=3, verbose=1)]
    if hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(folder + "/checkpoint-{epoch}.h5"))
    model.fit(dataset.repeat().shuffle(100).batch(8), steps_per_epoch=12 // hvd.size(), callbacks=callbacks, epochs=4,
              verbose=0)
    everyone_ = hvd.allgather_object([model.get_weights(), [v.numpy() for v in optimizer.variables]])
    for mine, first in zip(tf.nest.flatten(everyone_[hvd.rank()]), tf.nest.flatten(everyone_[0]), strict=True):
        assert numpy.array_equal(mine, first)
    return [float(optimizer.learning_rate.numpy()), sorted(os.listdir(folder))]


def elastic_fit():
    """fit() until 12 epochs are done, whichever rank is lost."""
    hvd.init()
    model = network(hvd.rank())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    x, y = numpy.ones((40, 6), "float32"), numpy.ones((40, 2), "float32")
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    class Tell(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print(f"epoch {epoch} of {hvd.size()} ranks", flush=True)

    @hvd.elastic.run
    def train(state):
        model.fit(x, y, batch_size=4, initial_epoch=state.epoch, epochs=12, verbose=0, callbacks=[
            Tell(), hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=5)])
    train(state)
    weights = hvd.allgather_object(model.get_weights()[0])
    assert all(numpy.array_equal(one, weights[0]) for one in weights)
    return [hvd.rank(), hvd.size(), state.epoch, int(model.optimizer.iterations.numpy())]


def saved_model(folder):
    hvd.init()
    model = network(hvd.rank())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    x, y = numpy.ones((8, 6), "float32"), numpy.ones((8, 2), "float32")
    model.fit(x, y, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    path = str(pathlib.Path(folder) / "model.keras")
    if hvd.rank() == 0:
        model.save(path)
    hvd.barrier()
    plain = keras.models.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.Adam
    again = hvd.load_model(path)
    assert [v.numpy().tolist() for v in again.optimizer.variables] == \
        [v.numpy().tolist() for v in model.optimizer.variables]
    again.fit(x * (hvd.rank() + 1), y, verbose=0)
    weights = hvd.allgather_object(again.get_weights()[0])
    assert all((one == weights[0]).all() for one in weights)
    return type(again.optimizer).__name__


class Keras(unittest.TestCase):
    def test_tape_and_fit_as_one_process_with_the_joined_batch(self):
        for count, ways_to_fit in ((2, [(1, None), (3, None), (1, 0.1)]), (4, [(1, None)])):
            with self.subTest(ranks=count):
                differences = ranks.on_ranks(count, exactness, ways_to_fit, backend=None, timeout=300)
                print(f"{count} ranks: relative differences {differences[0]}", file=sys.stderr)
                self.assertLess(max(max(one) for one in differences), 1e-12)

    def test_learning_rates(self):
        for seen, told in ranks.on_ranks(2, learning_rates, backend=None):
            warm = [0.1 + 0.1 * k / 6 for k in range(1, 7)]  # from that of one rank to that of two, over six batches
            for got, expected in zip(seen, [*warm, *[0.2] * 3, *[0.02] * 3, *[0.002] * 3], strict=True):
                self.assertAlmostEqual(got, expected, places=6)
            self.assertAlmostEqual(told[-1], 0.002, places=6)

    def test_a_script_for_older_keras(self):
        with tempfile.TemporaryDirectory() as folder:
            for rate, files in ranks.on_ranks(2, older_script, folder, backend=None):
                self.assertAlmostEqual(rate, 0.002, places=6)
                self.assertIn("checkpoint-4.h5", files)

    def test_a_killed_rank_in_fit(self):
        store = meeting.serve_store("127.0.0.1", 0, 60)
        with ranks.start(3, elastic_fit, backend=None, environment={"TORCHELASTIC_USE_AGENT_STORE": "True",
                                                                    "MASTER_PORT": str(store.port)}) as job:
            job.wait_for("epoch 2 of 3", 240)
            job.processes[0].kill()
            for rank, now in ((1, 0), (2, 1)):
                self.assertEqual(job.processes[rank].wait(240), 0, job.text())
                got = job.value(rank)
                self.assertEqual(got[:3], [now, 2, 12], job.text())
                self.assertGreaterEqual(got[3], 12 * 10)  # no batch less, those of an epoch begun anew again

    def test_the_example(self):
        output = programs.run("textbook/horovod_keras.py", "--samples", 4000, "--epochs", 2, timeout=600)
        first, last = (float(loss) for loss in re.findall(r" loss: ([0-9.]+)", output))
        self.assertLess(last, first)

    def test_saved_models(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(ranks.on_ranks(2, saved_model, folder, backend=None), ["Adam"] * 2)


if __name__ == "__main__":
    ranks.main(globals())
