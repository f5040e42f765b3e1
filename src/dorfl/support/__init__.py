"""Helpers for all other folders: types, threads, files, the wire format."""
