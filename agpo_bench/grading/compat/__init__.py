"""Published grading rules, their defects included, for comparison with old numbers. None is used as a reward."""
