"""What a client answers with: F_i, its gradient, its curvature and the weights of its rows."""

from dorfl.support.lazy import LazyModule

kernels = LazyModule("dorfl.linear.kernels")
