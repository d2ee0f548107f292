"""The likelihood of texts under a model: answers after a prompt, whole texts, the good one of a pair."""
