"""How likely texts are to a model: answers after a prompt, whole texts, the good one of a pair."""
