"""The textbook Horovod script for Keras, a CNN on Fashion-MNIST; its import line is all that differs.

    pip install tensorflow-cpu
    torchrun --nproc-per-node 2 examples/textbook/horovod_keras.py
    mpirun -n 2 python examples/textbook/horovod_keras.py
"""

import argparse

import bimetal.horovod.tensorflow.keras as hvd  # was: import horovod.tensorflow.keras as hvd
import keras
import tensorflow as tf
from images import fashion_mnist

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch-size", type=int, default=128, help="of each rank")
parser.add_argument("--lr", type=float, default=0.001, help="of one rank; multiplied by their number")
args = parser.parse_args()

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = (tensor.numpy() for tensor in fashion_mnist(args.samples).tensors)
dataset = tf.data.Dataset.from_tensor_slices((images.transpose(0, 2, 3, 1), labels))
dataset = dataset.repeat().shuffle(10000, seed=hvd.rank()).batch(args.batch_size)

model = keras.Sequential([
    keras.Input((28, 28, 1)),
    keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
    keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
    keras.layers.Flatten(),
    keras.layers.Dense(10, activation="softmax"),
])
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(args.lr * hvd.size()))
model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=args.lr * hvd.size(), warmup_epochs=3, verbose=1),
]

# Each rank makes its part of the steps that one process would make.
steps = args.samples // args.batch_size // hvd.size()
model.fit(dataset, steps_per_epoch=steps, epochs=args.epochs, callbacks=callbacks,
          verbose=2 if hvd.rank() == 0 else 0)
