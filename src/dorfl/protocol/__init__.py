"""One study as a sequence of steps: settings, messages, and the coordinator that combines replies.

settings     what is asked for; `toml` as people write it, `meaning` what the words mean
messages     what passes between the two sides; :mod:`dorfl.support.wire` makes it bytes
coordinator  a pure state machine; `vetting` checks what it hears, `checkpoint` keeps it
transcript   the signed replies of a run, which every site replays
"""
