"""The engine for real sites: thin adapters between Flower and the server's and the clients' side of a round."""
