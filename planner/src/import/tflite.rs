//! TensorFlow Lite models.
