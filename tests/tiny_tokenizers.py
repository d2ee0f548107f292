"""Small tokenizers: of given words, of bytes, and as a recipe trains them."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


def of_words(words, by_characters=False, **roles) -> PreTrainedTokenizerFast:
    """A token for each of the `words`, numbered in their order, of a text divided at white space.

    Args:
        by_characters: divide it into characters.
        roles: tokens by their roles, such as unk="<unk>".
    """
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=roles.get("unk", words[0])))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated") if by_characters else pre_tokenizers.WhitespaceSplit()
    if by_characters:
        backend.decoder = decoders.Fuse()
    return fast(backend, roles)


def of_bytes(special=("<|endoftext|>",), texts=(), size=0, **roles) -> PreTrainedTokenizerFast:
    """Byte-level BPE: the `special` tokens, a token for each byte, and merges learned from `texts` up to `size`."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    letters, special = pre_tokenizers.ByteLevel.alphabet(), list(special)
    how = {"initial_alphabet": letters, "special_tokens": special, "show_progress": False}
    backend.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, **how))
    return fast(backend, roles)


def fast(backend, roles) -> PreTrainedTokenizerFast:
    """transformers' face of it, without segments."""
    inputs = ["input_ids", "attention_mask"]
    names = {f"{role}_token": token for role, token in roles.items()}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **names)


def trained_on(text: str, folder, **settings) -> PreTrainedTokenizerFast:
    """What a recipe with these tokenizer settings trains on the text; its cache and the text are in the folder."""
    from anyformer.pipelines.data.opening import open_corpora
    from anyformer.pipelines.recipes.schema import DataSection, TokenizerSection
    from anyformer.pipelines.tokenizers.load import train_or_load_tokenizer

    (folder / "text.txt").write_text(text)
    corpus = open_corpora(DataSection(files=str(folder / "text.txt"), validation_fraction=0))["train"]
    return train_or_load_tokenizer(TokenizerSection(**settings), corpus, folder)
