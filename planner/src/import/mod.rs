//! Importers of models.

pub mod json;
pub mod onnx;
pub mod tflite;
