"""A study among sites that keep their rows: the two sides, what passes between them, how it lasts.

    study        what is agreed, written down
    messages     what passes; `wire` makes it bytes and reads it warily
    coordinator  one side, a pure state machine; `checkpoint` keeps its state
    site         the other side, which checks what it is asked
    local        both in one process, for tests and for trying a study out

Networks are the business of :mod:`dorfl.flower`.
"""
