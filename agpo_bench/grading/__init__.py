"""One grader a kind of answer; the same function is reward, metric and vote key."""
