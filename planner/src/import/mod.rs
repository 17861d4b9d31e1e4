//! Importers of models.

pub mod onnx;
pub mod tflite;
