"""A Flower app of one's own, trained by a method of dorfl: a strategy, a client and their records.

Studies over stock Flower, which need no app of one's own, are in :mod:`dorfl.carriers`.
"""
