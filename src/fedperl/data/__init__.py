"""Images and who holds them: manifest -> partition -> store -> views."""
