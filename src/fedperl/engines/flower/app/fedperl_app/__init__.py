"""What Flower starts; everything else is in fedperl."""
