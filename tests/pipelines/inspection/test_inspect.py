"""The page of an inspection: what it holds of texts and images, how large it is, and that a browser opens it."""

import base64
import gzip
import json
import re

import numpy as np
import pytest
from anyformer.pipelines.inspection.maps_page import write_page
from anyformer.pipelines.inspection.views import Wanted, places_of_word, view_of_image
from browser import dom_of, needs_browser
from PIL import Image
from tiny_tokenizers import of_bytes, of_words
from transformers import AutoModelForCausalLM, AutoTokenizer, ViTImageProcessorPil

import anyformer


def data_of(page) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)[1])


def shares(shown: dict) -> np.ndarray:
    """The weights of a map on a page, (H, T, S)."""
    levels = np.frombuffer(gzip.decompress(base64.b64decode(shown["data"])), dtype=np.uint8)
    return np.array(shown["largest"])[:, None, None] * (
        (levels.reshape(shown["heads"], len(shown["queries"]), -1) / 255) ** 2
    )


def places_in(tokenizer, text: str, word: str) -> list[int]:
    return places_of_word(tokenizer(text, return_tensors="pt", return_offsets_mapping=True), [text], word)


@pytest.fixture
def finished_run(tiny_recipe, command, tmp_path):
    assert command("train", tiny_recipe(training={"max_steps": 2}), f"training.output_dir={tmp_path / 'run'}") == 0
    return tmp_path / "run"


MISTAKES = {
    ("--word", "absent"): "--word 'absent' is in none of the texts",
    ("--layers", "9"): "--layers 9: the model has ",
    ("--layers", "x"): "--layers: x is no list of whole numbers",
}


def test_a_page_shows_what_attention_maps_gives(finished_run, command, tmp_path, capsys):
    page = tmp_path / "page.html"
    words = ("inspect", finished_run, "the text", "no text at all </script><b>", "--word", "text", "--out", page)
    assert command(*words) == 0
    assert "open it in a browser" in capsys.readouterr().out
    first, second = data_of(page)["views"]
    script = page.read_text().split('id="data"')[1].split("</script>")[0]
    assert second["title"].endswith("</script><b>") and "<b>" not in script
    model = AutoModelForCausalLM.from_pretrained(finished_run)
    inputs = {"input_ids": AutoTokenizer.from_pretrained(finished_run)("the text", return_tensors="pt")["input_ids"]}
    for shown, layer in zip(first["maps"], anyformer.attention_maps(model, **inputs), strict=True):
        assert np.abs(shares(shown) - layer.weights[0].numpy()).max() < 1 / 100
        assert len(shown["summary"]["to text"]) == shown["heads"]
    assert "".join(first["maps"][0]["queries"]) == "the text"
    assert "".join(first["maps"][0]["queries"][place] for place in first["words"]["text"]).strip() == "text"
    logits = model(**inputs).logits[0, -1].softmax(-1)
    assert first["lens"][-1][0][1] == pytest.approx(logits.max().item(), abs=1e-4)
    assert len(first["norms"]) == len(first["lens"]) == model.config.num_hidden_layers + 1
    for words, sentence in MISTAKES.items():
        assert command("inspect", finished_run, "a text", *words, "--out", tmp_path / "none.html") == 2
        assert sentence in capsys.readouterr().err and not (tmp_path / "none.html").exists()


def test_the_name_of_a_file_is_not_taken_for_a_text(finished_run, command, tmp_path, capsys):
    file, page = tmp_path / "reviews.txt", tmp_path / "page.html"
    file.write_text("a text")
    for words, way_out in (
        (
            ("inspect", finished_run, "a text", file, "--out", page),
            "TEXT={} is a file; --texts {} reads its lines",
        ),
        (("generate", finished_run, file), "PROMPT={} is a file; anyformer predict"),
    ):
        assert command(*words) == 2 and not page.exists()
        assert way_out.format(file, file) in capsys.readouterr().err
    assert command("inspect", finished_run, "x" * 300, "--out", page) == 0  # too long for the name of a file


def test_a_word_is_found_after_letters_whose_lower_case_is_longer():
    tokenizer, text = of_bytes(), "İİİ a Word, no other"
    places, ids = places_in(tokenizer, text, "word"), tokenizer(text)["input_ids"]
    assert "".join(tokenizer.decode([ids[place]]) for place in places).strip() == "Word"


def test_a_token_with_the_word_twice_in_it_is_one_place():
    assert places_in(of_words(["a", "banana"]), "a banana", "a") == [0, 1]


@pytest.fixture
def images_page(tiny_vit_config, tmp_path):
    model = anyformer.AnyformerViTForImageClassification(tiny_vit_config()).eval()
    image = Image.fromarray(np.arange(12 * 16 * 3, dtype=np.uint8).reshape(12, 16, 3))
    processor = ViTImageProcessorPil(size={"height": 12, "width": 16})
    shown = view_of_image(model, processor, image, Wanted())
    shown |= {"title": "image.png", "answer": None, "heads": []}
    write_page(tmp_path / "page.html", {"model": "a model", "about": "", "views": [shown]})
    return tmp_path / "page.html"


def test_an_image_is_shown_with_its_patches(images_page):
    (shown,) = data_of(images_page)["views"]
    rows, columns, before = shown["grid"]
    assert (rows, columns) == (3, 4) and len(shown["maps"][0]["queries"]) == before + 12
    assert shown["image"].startswith("data:image/png;base64,") and "lens" not in shown


@pytest.mark.slow
@needs_browser
def test_a_browser_draws_the_page_and_answers_clicks_and_keys(images_page, finished_run, command, tmp_path):
    page = tmp_path / "text.html"
    assert command("inspect", finished_run, "the text the text", "--word", "text", "--out", page) == 0

    def after(file, script: str) -> str:
        then = f"open(0).then(async () => {{ {script} }});\n</script>"
        return dom_of(file.read_text().replace("open(0);\n</script>", then), tmp_path)

    plain = after(page, "")
    assert 'data-ready="0"' in plain and "layer 0, head 0" in plain and "looks at" in plain
    last = len(data_of(page)["views"][0]["maps"]) - 1
    dom = after(page, f"""document.querySelector('[data-map="{last}"][data-head="1"]').click();""")
    assert f'<h2 id="head">layer {last}, head 1</h2>' in dom
    press = "new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true})"
    moved = after(page, f"document.getElementById('tokens').firstChild.dispatchEvent({press});")
    assert re.search(r'id="says"[^>]*>“[^”]*” \(1\) looks at', moved)
    picture = after(images_page, f"document.querySelector('#tokens canvas').dispatchEvent({press});")
    assert "“row 1, column 2”" in picture
