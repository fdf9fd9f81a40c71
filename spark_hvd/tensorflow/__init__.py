"""TensorFlow. Today: batches of prepared data as a ``tf.data.Dataset``."""
