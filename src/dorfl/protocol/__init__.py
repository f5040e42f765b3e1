"""One study as a sequence of steps: settings, messages, and the coordinator that combines replies.

steps        one file for each step, with all that belongs to it; `step` is the base class
coordinator  begins one step after the other; `state` is what it carries, `checkpoint` saves it
sums         secure sums of any step's answers, in summed studies
settings     the text of a study; `toml` reads and writes it, `checks` and `resolution` interpret it
messages     requests and replies; :mod:`dorfl.support.wire` makes them bytes
transcript   the signed replies of a run, which every site replays
"""
