"""The language of some texts, by its script or its most frequent words."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

# Words that are frequent in one language and seldom in the others; their codes are those of names of models.
FREQUENT = {
    "en": "the of and to is that was with for are this it you",
    "de": "der die das und ist nicht ein eine mit den zu auf ich sich",
    "fr": "le les et des est une dans qui pour pas sur du vous",
    "es": "el los y las que en una por con para del es no",
    "it": "il che di e la per non una sono della con gli un",
    "pt": "o que e não uma para com os em da do é um",
    "nl": "het een van en niet dat ik zijn op de is voor met",
    "pl": "nie i w na się z do to że jest",
    "sv": "och att det som en på är av för inte",
}
SCRIPTS = {"CYRILLIC": "ru", "GREEK": "el", "ARABIC": "ar", "HEBREW": "he", "CJK": "zh", "HIRAGANA": "ja"}
SCRIPTS |= {"KATAKANA": "ja", "HANGUL": "ko", "DEVANAGARI": "hi", "THAI": "th"}


def language_of(texts: Iterable[str]) -> str | None:
    """The code of a language; None: it is not told."""
    text = " ".join(list(texts)[:200])[:20_000].lower()
    letters = [unicodedata.name(letter, "").split(" ")[0].split("-")[0] for letter in text if letter.isalpha()]
    script, number = Counter(letters).most_common(1)[0] if letters else ("", 0)
    if script != "LATIN" and 2 * number > len(letters):
        return "ja" if "HIRAGANA" in letters else SCRIPTS.get(script)
    words = Counter(re.findall(r"\w+", text))
    found = {code: sum(words[word] for word in frequent.split()) for code, frequent in FREQUENT.items()}
    best = max(found, key=found.__getitem__)
    return best if found[best] > 0.06 * words.total() else None
