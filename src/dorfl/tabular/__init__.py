"""One study, wherever its rows are: in one table, or at sites that keep them.

settings     what is asked for; `toml` as people write it, `meaning` what the words mean
messages     what passes between the two sides; :mod:`dorfl.support.wire` makes it bytes
coordinator  one side, a pure state machine; `vetting` checks what it hears, `checkpoint` keeps it
site         the other side, which checks what it is asked; `memory` is what it was asked before
serving      what a client computes of its rows, wherever they are; `labels`, `constant`
table        the engine for rows that are all here; `local` carries bytes in one process, for
             tests, and :mod:`dorfl.carriers` over a network
results      what is left: a model and its facts; `comparison`, `audit`, `pages`, `proposal`
"""
