"""What a person reads: tables on the screen."""
