"""What each command of the command line does; imported when the command runs."""
