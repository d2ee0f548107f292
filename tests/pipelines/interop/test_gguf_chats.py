"""Chat templates in GGUF files: llama.cpp writes conversations as the tokenizer does, or the export names which not."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from anyformer.pipelines.chat_templates import ASK, CALL, PROBES, SAY, ChatTemplate, with_text
from anyformer.pipelines.interop.gguf import verifying, vocabulary
from anyformer.pipelines.interop.gguf.architectures import GGUF_ARCHITECTURES
from anyformer.pipelines.interop.gguf.gguf_file import write_file
from anyformer.pipelines.recipes.recipe_files import chat_template_of
from test_gguf import BASE, END, LLAMA_CPP, SMOLLM2, TEXT, exported
from tiny_tokenizers import of_bytes
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

OURS = ("plain", "chatml", "chatml_tools")
SOURCES = os.environ.get("ANYFORMER_LLAMA_CPP_SOURCES")  # a checkout of llama.cpp, such as a source distribution's
CHATS = {"questions": ([ASK], {}), "several turns": ([ASK, SAY, ASK], {})}
CHATS |= {name: (messages, variables) for name, (messages, variables, _) in PROBES.items()}
CHATS |= {
    "spaces": ([{"role": "user", "content": "  why\n\n "}, SAY | {"content": "\tit is é 雨 \u2028so\n"}, ASK], {})
}
# Renders {"template": ..., "messages": ..., ...} of the standard input, as llama-server does: common/chat.cpp.
SERVER = """
#include "jinja/caps.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "json.h"
#include <iostream>
#include <iterator>
extern "C" void ggml_abort(const char *, int, const char *, ...) { std::abort(); }
int main() {
    std::string given(std::istreambuf_iterator<char>(std::cin), {});
    common_json input = common_json::parse(given);
    jinja::lexer lexer;
    auto tokens = lexer.tokenize(input["template"].get<std::string>());
    auto program = jinja::parse_from_tokens(tokens);
    jinja::caps caps = jinja::caps_get(program);
    jinja::context context(tokens.source);
    jinja::global_from_json(context, input, true);
    jinja::runtime runtime(context);
    const jinja::value results = runtime.execute(program);
    common_json output;
    output["text"] = jinja::runtime::gather_string_parts(results)->as_string().str();
    output["takes_objects"] = caps.supports_object_arguments;
    std::cout << output.dump();
}
"""


def tokenizer_of(template: str):
    special = [END, "<|pad|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = of_bytes(special, [TEXT], 310, eos=END, pad="<|pad|>")
    tokenizer.chat_template = template
    return tokenizer


def unlike(template: str, folder: Path) -> list[str]:
    tokenizer = tokenizer_of(template)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING["llama"](**BASE))
    texts, stops = vocabulary.hard_texts(tokenizer, 5), [0]
    it = verifying.Exported(model, tokenizer, GGUF_ARCHITECTURES["llama"], texts, stops)
    write_file(folder / "v.gguf", it, ("gpt2", "gpt-2"))
    return verifying.unlike_chats(folder / "v.gguf", it)


@LLAMA_CPP
@pytest.mark.parametrize("name", OURS)
def test_our_templates_are_rendered_alike(name, tmp_path):
    assert unlike(chat_template_of(name), tmp_path) == []


@LLAMA_CPP
@pytest.mark.parametrize(
    "template, named",
    [
        ("{{ bos_token }}{{ messages[0].content }}", ["questions", "several turns", *PROBES]),  # a file needs some BOS
        ("{% if tools %}{{ functions is none }}{% endif %}{{ messages[0].content }}", ["tools"]),
        ("{{ raise_exception('no') if messages[1:] }}{{ messages[0].content }}{{ tools is none }}", []),
    ],
)
def test_what_is_rendered_otherwise_is_named(template, named, tmp_path):
    assert unlike(template, tmp_path) == named


@SMOLLM2
@LLAMA_CPP
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_smollm2s_own_template_and_tokenizer_are_read_alike(kind, tmp_path, capsys):
    facts = json.loads(exported(tmp_path, "smollm2", "--type", kind).with_suffix(".json").read_text())
    said = capsys.readouterr().out
    assert "gpt2, smollm" in said and facts["chats_unlike"] == [] and facts["unlike"] == 0
    assert facts["greedy_tokens_equal"] == 50 or kind == "q8_0"
    with capsys.disabled():
        print(f"\n{said}")


def test_the_arguments_of_a_call_may_be_text_as_clients_of_openai_send_them():
    tokenizer = tokenizer_of(chat_template_of("chatml_tools"))
    as_text = CALL | {"tool_calls": [with_text(call) for call in CALL["tool_calls"]]}
    first, second = (tokenizer.apply_chat_template([ASK, each], tokenize=False) for each in (CALL, as_text))
    assert first == second and '"arguments": {"place": "Oslo"}' in first


@pytest.fixture(scope="module")
def llama_server(tmp_path_factory):
    """Renders by the Jinja of llama-server, which is compiled from llama.cpp's sources."""
    folder, common = tmp_path_factory.mktemp("server"), Path(SOURCES) / "common"
    (folder / "server.cpp").write_text(SERVER)
    files = [*(common / "jinja").glob("*.cpp"), common / "json.cpp", common / "unicode.cpp", folder / "server.cpp"]
    places = [f"-I{Path(SOURCES) / each}" for each in ("common", "vendor", "ggml/include")]
    subprocess.run(["g++", "-std=c++17", "-O0", *places, *map(str, files), "-o", str(folder / "server")], check=True)

    def render(**given) -> dict:
        asked = {name: value for name, value in given.items() if value is not None}
        done = subprocess.run([folder / "server"], input=json.dumps(asked), capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return render


@pytest.mark.slow
@pytest.mark.skipif(not (SOURCES and shutil.which("g++")), reason="ANYFORMER_LLAMA_CPP_SOURCES names no sources")
@pytest.mark.parametrize("name", [*OURS, pytest.param("smollm2", marks=SMOLLM2)])
def test_llama_server_renders_as_the_tokenizer_does(name, llama_server):
    if name == "smollm2":
        from anyformer.pipelines.open_tokenizer import open_tokenizer

        tokenizer = open_tokenizer(name)
    else:
        tokenizer = tokenizer_of(chat_template_of(name))
    template = ChatTemplate(tokenizer)
    marks = {"eos_token": tokenizer.eos_token, "bos_token": tokenizer.bos_token or ""}
    for what, (messages, variables) in CHATS.items():
        how = variables | {"add_generation_prompt": True}
        if (expected := template.write(messages, tokenize=False, **how)) is not None:
            found = llama_server(template=tokenizer.chat_template, messages=messages, **marks, **how)
            assert found["text"] == expected, what
            assert found["takes_objects"] == (name == "chatml_tools")
