"""Uses of a saved model: a file that other engines run, a chat in the terminal, a server."""
