"""The server and the client of a round, what crosses between them, and what is kept: no transport in here."""
