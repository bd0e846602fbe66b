"""Each table and figure of the paper as a suite: ours beside what it prints."""
