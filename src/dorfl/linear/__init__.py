"""Exact robust risks of linear models: F_i, its gradient, its curvature and the weights of rows."""

from dorfl.support.lazy import LazyModule

kernels = LazyModule("dorfl.linear.kernels")
