r"""Mathematics from LaTeX, read by an own grammar with input limits: no evaluator and no third-party parser sees the
text.

``parse`` gives a small tree; ``algebra`` its exact normal form; ``enclosure`` a float with an error bound, only ever
used to tell two values apart; ``symbolic`` builds sympy objects by constructors, in a worker process only.
"""
