"""From a model file to another with smaller weights, byte for byte what llama-quantize b11434 makes of it.

A recipe (what to do) and a source give a plan (each tensor's type, settled before any work); the plan's tensors
are then converted slice by slice. The kernels are in kinetic/backends/cpu/quantise.
"""
