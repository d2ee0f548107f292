"""A Modelfile: how Ollama makes a model of a GGUF file (`ollama create NAME -f FILE.Modelfile`)."""

import json

from ...recipes.recipe_files import chat_template_of

# Our template `plain` in Go's form. Ollama has no function that trims, so that spaces around a message stay.
PLAIN = '''TEMPLATE """{{- range .Messages }}<|{{ .Role }}|>
{{ .Content }}%s
{{ end }}<|assistant|>
"""'''
OTHER = """\
# No TEMPLATE, which is in Go's form: llama-server renders the file's own, in Jinja. Ollama compares that with templates
# that it knows, and may take one that is only similar: see `ollama show --template NAME`."""


def modelfile(name: str, tokenizer, stops: list[int], system: str | None) -> str:
    """The text of a Modelfile. name: of the GGUF file beside it. system: a system message before each conversation."""
    lines = ["# Not run by anyformer.", f"FROM ./{name}"]
    lines += [f"PARAMETER stop {json.dumps(token)}" for token in tokenizer.convert_ids_to_tokens(stops)]
    if template := tokenizer.chat_template:
        lines.append(PLAIN % tokenizer.eos_token if template == chat_template_of("plain") else OTHER)
    if system:
        lines.append(f'SYSTEM """{system}"""')
    return "\n".join(lines) + "\n"
