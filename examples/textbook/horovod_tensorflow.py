"""Horovod's textbook script for TensorFlow 2 with DistributedGradientTape; its import line is all that differs.

    pip install tensorflow-cpu
    torchrun --nproc-per-node 2 examples/textbook/horovod_tensorflow.py
"""

import argparse
import os

import bimetal.horovod.tensorflow as hvd  # was: import horovod.tensorflow as hvd
import tensorflow as tf
from images import fashion_mnist

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
parser.add_argument("--steps", type=int, default=10000, help="of all ranks together")
parser.add_argument("--batch-size", type=int, default=128, help="of each rank")
parser.add_argument("--lr", type=float, default=0.001, help="of one rank; multiplied by their number")
parser.add_argument("--checkpoints", help="a folder for rank 0's")
args = parser.parse_args()

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = (tensor.numpy() for tensor in fashion_mnist(args.samples).tensors)
dataset = tf.data.Dataset.from_tensor_slices((images.transpose(0, 2, 3, 1), labels))
dataset = dataset.repeat().shuffle(10000, seed=hvd.rank()).batch(args.batch_size)

model = tf.keras.Sequential([
    tf.keras.Input((28, 28, 1)),
    tf.keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
    tf.keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(10, activation="softmax"),
])
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(args.lr * hvd.size())


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        loss_value = loss(labels, model(images, training=True))

    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))

    # After the first step, so that the optimizer has its variables.
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)
    return loss_value


for batch, (images, labels) in enumerate(dataset.take(args.steps // hvd.size())):
    loss_value = training_step(images, labels, batch == 0)
    if batch % 10 == 0 and hvd.rank() == 0:
        print(f"step {batch}: loss {loss_value:.4f}", flush=True)

same = hvd.allgather(tf.reshape(tf.reduce_sum(model.trainable_variables[0]), [1]))
if hvd.rank() == 0:
    print(f"a weight's sum on each rank: {[round(float(x), 6) for x in same]}")
    if args.checkpoints:
        tf.train.Checkpoint(model=model, optimizer=opt).save(os.path.join(args.checkpoints, "checkpoint"))
