"""Lets `python -m fedperl` do what `fedperl` does."""

from fedperl.cli import main

main()
