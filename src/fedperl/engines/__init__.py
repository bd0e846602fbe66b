"""What carries tasks to clients and answers back."""
