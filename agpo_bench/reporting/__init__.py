"""Tables and figures from files on disk; never imports torch."""
