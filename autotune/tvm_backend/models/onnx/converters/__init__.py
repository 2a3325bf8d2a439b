"""Operators of ONNX as Relax, where TVM's importer has none or another."""
