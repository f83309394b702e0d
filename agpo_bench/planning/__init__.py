"""Whether a run fits a machine and what it costs, from shapes alone: nothing here imports torch or reads weights."""
