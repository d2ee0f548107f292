"""A saved model in other hands: a file that other engines run, a chat in the terminal, a server."""
