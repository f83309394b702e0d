"""Whether training text holds evaluation items: exact copies, near copies, and the same text with other numbers.

``spelling`` reads texts as tokens that do not depend on how they are typeset, ``index`` holds the evaluation items and
screens any number of training texts against them, ``compare`` aligns a pair, and ``check`` runs the stages.
"""
