"""What people type, one module for each command; `dorfl.cli` gathers them."""
