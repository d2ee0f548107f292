"""A Hub of our own for one test, and fresh processes that talk to it.

huggingface_hub reads its endpoint and folders when it is imported, so clients are always processes of their own.
Scripts that need no Hub run in forks of one process that has imported transformers and can import no anyformer.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from hub_server import HubServer

# In a process that starts with this, anyformer and its folders cannot be imported, wherever they are installed.
WITHOUT_ANYFORMER = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("anyformer", "anyformer_main", "modeling", "pipelines"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
try:
    import anyformer
except ModuleNotFoundError:
    pass
else:
    sys.exit("anyformer was to be blocked")
"""


class LocalHub:
    """Context manager: a hub server on a free port, and `run`/`command` for processes that use it as their Hub."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.server = HubServer()
        self.env = client_env(folder) | {
            "HF_ENDPOINT": self.server.url,
            "HF_TOKEN": "hf_test",
            "HF_HUB_DISABLE_XET": "1",
        }
        self.env.pop("HF_HUB_OFFLINE")

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """Content of every file of a model repository, by path."""
        repo = self.server.repos[repo_id]
        files = repo["commits"][repo["refs"][revision]]["files"]
        return {path: self.server.blobs[file["oid"]] for path, file in files.items()}

    def command(self, *arguments, **env: str | None) -> subprocess.CompletedProcess:
        """Run `anyformer ARGUMENTS`; `env` overrides the environment, None removes a variable."""
        environment = {k: v for k, v in (self.env | env).items() if v is not None}
        door = "import sys, anyformer_main; sys.exit(anyformer_main.main())"  # as the installed script does
        return run_python("-c", door, *map(str, arguments), env=environment, cwd=self.folder)


def client_env(folder: Path) -> dict[str, str]:
    """Environment of a fresh process: its own caches, no network."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    return inherited | {"HF_HOME": str(folder / "hf-home"), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}


def run_python(*arguments: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


def run_script(script: str, *arguments, env: dict[str, str], cwd: Path):
    """Run Python source with `arguments` (JSON, as `args`); return what it hands to `report`, as JSON."""
    result = cwd / "script-result.json"
    result.unlink(missing_ok=True)
    head = "import json\nimport sys\nargs = json.loads(sys.argv[1])\n"
    done = run_python("-c", head + reporting(result) + script, as_json(arguments), env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(result.read_text()) if result.exists() else None


def reporting(result: Path) -> str:
    return f"\ndef report(value):\n    open({str(result)!r}, 'w').write(json.dumps(value))\n"


def as_json(arguments) -> str:
    return json.dumps([str(a) if isinstance(a, Path) else a for a in arguments])


# Reads one request per line, runs it in a fork of itself, and answers with the exit code. Code of models that an
# earlier script has loaded is removed before: each script finds what its own folders bring, and nothing else.
FORKING_SERVER = """
import json
import os
import shutil
import traceback

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationMixin, PreTrainedTokenizerFast, pipeline
from transformers.dynamic_module_utils import HF_MODULES_CACHE

torch.set_num_threads(1)  # threads do not survive a fork
answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    script, arguments, cwd, log = json.loads(line)
    shutil.rmtree(HF_MODULES_CACHE, ignore_errors=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(cwd)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1), os.dup2(output, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what asks for permission gets no answer, at once
            exec(compile(script, "script", "exec"), {"__name__": "__main__", "args": json.loads(arguments)})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
shutil.rmtree(os.getcwd(), ignore_errors=True)  # the test process has ended
"""


@functools.cache
def forking_server() -> subprocess.Popen:
    """The process that cannot import anyformer, started by the first script of this test process; it ends with that."""
    folder = Path(tempfile.mkdtemp(prefix="anyformer-tests-"))
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT_ANYFORMER + FORKING_SERVER],
        env=client_env(folder),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_without_anyformer(script: str, *arguments, cwd: Path):
    """As `run_script`, in a fork of a process that cannot import anyformer and has transformers imported."""
    server, result, log = forking_server(), cwd / "script-result.json", cwd / "script-output.txt"
    result.unlink(missing_ok=True)
    script = "import json\nimport sys\n" + reporting(result) + script
    print(json.dumps([script, as_json(arguments), str(cwd), str(log)]), file=server.stdin, flush=True)
    code = server.stdout.readline().strip()
    assert code == "0", log.read_text()[-4000:] if log.exists() else f"the server has ended: {code}"
    return json.loads(result.read_text()) if result.exists() else None
