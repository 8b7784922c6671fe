"""What the real tritonserver of the embedded cluster serves: a small model written out as ONNX graphs."""
